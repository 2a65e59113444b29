"""Who boots what: fleet -> decisions (`decide`), a decision at an instant -> its plan (`plan`).

`affected` says whose decisions a commit can change: of the next one only those are made anew.
"""
