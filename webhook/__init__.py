"""
Admission: an AdmissionReview in, a JSON patch or field errors out.

It may not hold state between two requests, open the ledger's database, call the scheduler or the
agent, or refuse a Pod without naming every field that is wrong. Its rules are pure.
"""
