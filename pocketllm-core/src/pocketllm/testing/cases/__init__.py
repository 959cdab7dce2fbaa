"""The cases: each drives an engine through one situation and names the rule that the situation is about.

Whatever its rule, every case is followed by the judgement of all its streams (S1 to S10) and by the comparison of what
is held with what was held before (R1 to R4).
"""
