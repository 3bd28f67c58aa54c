"""The kinds of ops that auto-sharding treats alike, by StableHLO name without dialect."""

_ONE_OPERAND = """
abs cbrt ceil convert cosine count_leading_zeros exponential exponential_minus_one floor imag is_finite log
log_plus_one logistic negate not popcnt real reduce_precision round_nearest_afz round_nearest_even rsqrt sign sine
sqrt tan tanh bitcast_convert
acos acosh asin asinh atan atan_exp atanh bessel_i1e conj cosh digamma erf erf_inv erfc is_inf is_neg_inf is_pos_inf
lgamma sinh square trigamma
"""
_MORE_OPERANDS = """
add and atan2 compare complex divide maximum minimum multiply or power remainder shift_left shift_right_arithmetic
shift_right_logical subtract xor next_after polygamma zeta
select clamp
"""

# The result has the operands' dims; each element depends on the operands' elements at the same place.
ELEMENTWISE = frozenset([*_ONE_OPERAND.split(), *_MORE_OPERANDS.split()])
