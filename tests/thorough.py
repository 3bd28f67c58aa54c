"""Cases that `make test` leaves out: laws that it checks on smaller models or fewer meshes. `make thorough` runs them.

By the name of the test, the identifiers of its parameters. Invariant: each is one that the test has (conftest.py).
"""

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
    "test_skeletons_tell_the_collectives_of_the_whole_program": ("moe-shape3", "gpt-shape4"),
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
}
