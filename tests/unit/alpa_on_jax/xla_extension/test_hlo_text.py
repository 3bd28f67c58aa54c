"""Parameters in HLO texts have the names that alpa's readers look for, and nothing else changes."""

from alpa_on_jax.xla_extension.hlo_text import with_alpa_parameter_names

TEXT = """HloModule step, entry_computation_layout={(f32[4]{0}, f32[4]{0})->f32[4]{0}}

%fused (Arg_0.1: f32[4]) -> f32[4] {
  %Arg_0.1 = f32[4]{0} parameter(0)
  ROOT %negate = f32[4]{0} negate(%Arg_0.1)
}

ENTRY %main.3 (Arg_0.1: f32[4], Arg_1.1: f32[4]) -> f32[4] {
  %Arg_1.1 = f32[4]{0} parameter(1)
  %Arg_0.1 = f32[4]{0} parameter(0)
  %Arg_0.11 = f32[4]{0} fusion(%Arg_0.1), kind=kLoop, calls=%fused
  ROOT %add = f32[4]{0} add(%Arg_0.11, %Arg_1.1)
}
"""


def test_the_entrys_parameters_are_named_by_their_numbers() -> None:
    entry = with_alpa_parameter_names(TEXT).partition("ENTRY")[2]
    assert "(param: f32[4], param.1: f32[4]) -> f32[4]" in entry
    assert "%param.1 = f32[4]{0} parameter(1)" in entry
    assert "ROOT %add = f32[4]{0} add(%Arg_0.11, %param.1)" in entry


def test_other_computations_keep_their_names() -> None:
    assert with_alpa_parameter_names(TEXT).partition("ENTRY")[0] == TEXT.partition("ENTRY")[0]


def test_a_text_in_which_a_new_name_is_taken_stays_as_it_is() -> None:
    taken = TEXT.replace("%add", "%param.1")
    assert with_alpa_parameter_names(taken) == taken
