"""Cases that `make test` leaves out: laws that it checks on smaller models or fewer meshes. `make thorough` runs them.

By the name of the test, patterns of the identifiers of its parameters ("*" is any text). Invariants (conftest.py): each
pattern fits a case, and some case of each test fits none, so that `make test` leaves out no behaviour.
"""

# On 1x8 and 2x4 half of the combinations of methods and micro-batches: each two of the three are together in some case.
_METHODS_MESHES_AND_MICRO_BATCHES = (
    "[!uw]*-2x2-*",
    "*-1x8-ilp-whole_batch",
    "*-1x8-data_parallel_method-2_micro_batches",
    "*-1x8-zero2-whole_batch",
    "*-1x8-zero3-2_micro_batches",
    "*-2x4-ilp-2_micro_batches",
    "*-2x4-data_parallel_method-whole_batch",
    "*-2x4-zero2-2_micro_batches",
    "*-2x4-zero3-whole_batch",
)
_PLANS_MESHES_AND_MICRO_BATCHES = (
    "*-2x2-*",
    "*-1x8-data_parallel-whole_batch",
    "*-1x8-megatron-2_micro_batches",
    "*-2x4-data_parallel-2_micro_batches",
    "*-2x4-megatron-whole_batch",
)

THOROUGH: dict[str, tuple[str, ...]] = {
    # Models
    "test_a_model_initialises_and_has_a_finite_gradient": ("wide resnet, bottleneck", "u-net, cross attention"),
    "test_remat_changes_no_gradient": ("moe",),
    "test_the_largest_models_have_as_many_parameters_as_their_names_say": ("moe-70B", "wide_resnet-13B"),
    "test_a_scaled_case_is_planned_from_shapes": ("moe-70B", "wide_resnet-13B"),
    # Blocks and segments
    "test_a_model_of_any_depth_has_as_many_kinds_of_segments_as_one_of_four_layers": (
        "llama, remat-32",
        "moe-32",
        "llama-32",
    ),
    "test_a_training_step_has_canonical_dots_only": ("unet",),
    "test_no_matrix_of_a_training_step_is_transposed": ("unet",),
    "test_no_block_of_a_model_communicates_when_it_is_split_along_a_live_factor": ("unet",),
    "test_no_block_of_a_model_is_only_numbered": ("wide_resnet", "unet"),
    "test_skeletons_tell_the_work_of_the_whole_program": ("moe-shape3", "gpt-shape4"),
    "test_a_skeleton_has_the_ops_and_blocks_of_a_shallower_model": ("moe",),
    # Candidates and stages
    "test_a_permuted_candidate_is_the_one_that_its_own_program_gives": (
        "stage of gpt-2x2",
        "moe-2x2",
        "conv-2x2x2",
    ),
    "test_weights_and_sums_of_gradients_are_sharded_as_in_the_stage": ("moe-as used", "moe-all split"),
    "test_what_is_composed_for_a_machine_of_known_rates_is_what_a_micro_batch_takes_there": (
        "gpt-4-fast",
        "gpt-4-half as fast",
    ),
    # Whole programs
    "test_states_gradients_and_metrics_of_two_steps_equal_the_serial_ones": _METHODS_MESHES_AND_MICRO_BATCHES,
    "test_the_state_after_two_sgd_steps_equals_the_serial_one": (*_PLANS_MESHES_AND_MICRO_BATCHES, "unet-2x4-*"),
    "test_the_accumulate_step_reduces_no_gradient": ("*-2x2-*", "unet-2x4-*"),
    "test_a_planned_model_equals_the_serial_run": ("unet-2x2-2",),
    "test_a_plan_of_estimated_costs_equals_the_serial_run": ("*-2x2-*",),
    "test_training_steps_along_three_axes_equal_the_serial_ones": ("gpt",),
    "test_steps_that_feed_on_each_other_equal_the_serial_ones": ("*-4x2-*",),
    "test_a_step_of_a_raced_model_equals_the_serial_run": ("*-alpa-ilp",),
    "test_a_plan_of_measured_costs_equals_the_serial_run": ("gpt-*",),
    "test_a_model_with_strategies_drawn_at_random_equals_the_serial_run": ("*-1",),
    "test_a_step_with_any_combination_of_strategies_equals_the_serial_one": ("*-[3-9]", "*-1[01]"),
    "test_the_step_equals_the_serial_one_with_every_option": ("*-2x2-None", "*-1x4-2"),
    "test_the_best_plan_along_three_axes_is_at_least_as_good_as_along_products_of_them": ("*-1024-512",),
    "test_values_of_all_kinds_are_those_of_the_batch": ("1x8-*",),
    "test_a_cumulative_op_equals_the_serial_one": ("*-16-1x8-*", "*-7-2x4-*"),
    # Pipelines and processes
    "test_what_a_pipeline_gives_equals_the_serial_run": ("moe-4-*", "conv-2-*"),
    "test_stages_are_chosen_within_one_process_where_their_costs_are_composed": ("gpt-3-*",),
    "test_a_plan_is_measured_on_the_devices_of_all_processes": ("2-2",),
    "test_a_mesh_may_have_two_axes_and_its_devices_in_any_order": ("in_processes",),
    "test_a_pipeline_refuses_what_it_would_average": ("a *", "the *"),
    "test_layers_that_are_computed_again_for_their_gradients_give_the_serial_step": ("automatic, fine",),
    # Examples
    "test_a_wrong_gradient_of_one_weight_is_not_explained_by_rounding": ("none",),
    "test_a_run_that_is_stopped_and_resumed_is_the_run_without_interruption_bit_for_bit": ("cfp",),
}
