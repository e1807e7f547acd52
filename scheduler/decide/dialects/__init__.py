"""
The ways to ask for GPUs, as deciding sees them: fit, pick, reasons, answer and advice of each.

`protocol` says what a dialect must bring, `registry` lists those that there are. Outside the
folders nobody asks which dialect it is: whoever needs to know calls the dialect's object.
"""
