"""Scheduled work: claims, starts, batches, windows that were missed or not completed, and rows that were left out.

Here belongs what holds for every job. What a job does is in the room of its business; when Dagster starts it is in the
outer folder `schedules/`, from the table in `intervals`. Import from the modules.
"""
