"""What people read about months (`board`), one organization's month (`explain`) and effects (`activity`).

Nothing here changes anything. What a room says of itself is in its own `queries`; here is what several rooms say.
"""
