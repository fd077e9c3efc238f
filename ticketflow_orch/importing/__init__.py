"""History and test data from a folder: streamed in by COPY, judged row by row, imported as a whole or not at all.

`format` has the kinds of rows and what a cell must look like, `rules` what takes more than one cell to judge. In
production the application writes its tables itself; nothing of that is here.
"""

from ticketflow_orch.importing.import_files import import_folder
from ticketflow_orch.importing.loading import Counts, ImportResult
from ticketflow_orch.importing.problems import ImportRefused, Problem, ProblemCount
from ticketflow_orch.importing.undo import UndoResult, undo_import

__all__ = [
    "Counts",
    "ImportRefused",
    "ImportResult",
    "Problem",
    "ProblemCount",
    "UndoResult",
    "import_folder",
    "undo_import",
]
