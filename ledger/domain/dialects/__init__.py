"""
The ways to ask for GPUs, one folder each: names, rules, demand, adoption, annotations.

`protocol` says what a dialect must bring, `names` and `registry` list those that there are. Outside
the folders nobody asks which dialect it is: whoever needs to know calls the dialect's object.
"""
