"""Which of two plans of one function is the faster one; they may be plans of different forms of it."""

from alpa_cfp.plan.plan import Plan

# The share by which a step has to be faster: less is noise of times that were not taken side by side.
LEAST_GAIN = 0.01


def is_faster(plan: Plan, than: Plan) -> bool:
    """Whether the step of a plan is surely faster than that of another one.

    Steps are compared as measured, or as predicted if neither was: of a plan that was not measured, and one that was,
    none is surely faster.
    """
    if plan.measured_s is None and than.measured_s is None:
        return plan.predicted_s < (1 - LEAST_GAIN) * than.predicted_s
    if plan.measured_s is None or than.measured_s is None:
        return False
    return plan.measured_s < (1 - LEAST_GAIN) * than.measured_s
