"""Tests that only ``make test-all`` runs.

They are long tests, variations of tests in ``make test``, and tests of programs that ``make binaries`` builds.

The mark ``thorough`` in a test module has the same effect. It is used for parameters that many tests share.
"""

from collections import defaultdict
from collections.abc import Iterable

import pytest

KEPT: dict[str, dict[str, int]] = {
    "tests/chart/test_chart_values.py": {
        "test_definitions_and_table_are_those_of_structs_and_values": 0,
    },
    "tests/integration/agents/test_human_agent.py": {
        "test_a_script_on_a_pipe_repairs_a_bug": 0,
        "test_ctrl_c_drops_the_line_and_ctrl_d_cancels_the_episode": 0,
        "test_the_end_of_the_input_cancels_the_episode": 0,
        "test_what_a_program_prints_does_not_drive_the_terminal": 0,
    },
    "tests/integration/agents/test_provenance.py": {
        "test_a_long_parameter_is_recorded_by_its_digest": 0,
        "test_the_digest_of_a_prompt_follows_its_template_and_what_it_includes": 0,
    },
    "tests/integration/agents/test_resuming_agents.py": {
        "test_another_worker_goes_on_with_the_same_messages": 0,
    },
    "tests/integration/agents/test_run_thinking.py": {
        "test_a_benchmark_is_debugged_and_solved": 0,
        "test_a_person_can_take_the_models_place": 0,
        "test_a_set_stops_when_its_cost_limit_is_spent_and_goes_on_with_a_higher_one": 0,
        "test_debug_stops_after_each_reply_before_its_call_is_made": 0,
        "test_the_patch_is_applied_after_a_question": 0,
    },
    "tests/integration/agents/test_sent_requests.py": {
        "test_a_compaction_is_seen_in_the_request_after_it": 0,
        "test_the_trajectory_has_every_request_byte_for_byte": 1,
    },
    "tests/integration/agents/test_show_agent.py": {
        "test_a_prompt_fits_on_one_page": 1,
        "test_every_form_of_a_request_is_shown": 0,
        "test_the_body_is_what_an_episode_sends_byte_for_byte": 1,
    },
    "tests/integration/agents/test_thinking_agents.py": {
        "test_a_call_that_is_all_of_a_reply_is_understood_in_every_form": 1,
        "test_a_lost_attempt_counts_against_the_cost_limit": 0,
        "test_a_model_never_sees_the_faults_of_the_infrastructure": 0,
        "test_a_model_that_fails_is_not_counted_and_the_changes_before_are_kept_without_a_score": 1,
        "test_a_slow_model_holds_up_no_other_episode_of_the_process": 0,
        "test_a_tool_that_becomes_available_changes_nothing_that_was_sent": 0,
        "test_an_agent_that_cannot_go_on_is_scored_on_its_workspace": 1,
        "test_an_episode_ends_at_its_cost_limit_and_is_scored": 0,
        "test_an_episode_that_may_not_be_compacted_ends": 0,
        "test_an_episode_without_the_tool_eval_begins_without_a_run_of_the_tests": 0,
        "test_an_evaluation_that_passes_can_end_the_episode": 0,
        "test_evaluations_are_the_users_choice": 0,
        "test_every_request_begins_with_the_one_before": 0,
        "test_limits_end_the_episode": 0,
        "test_old_observations_make_room_when_the_context_is_full": 1,
        "test_reasoning_goes_back_as_it_was_received": 1,
        "test_reasoning_is_neither_asked_for_nor_returned_where_it_is_dropped": 0,
        "test_replies_without_a_call_that_are_not_in_a_row_do_not_end_the_episode": 0,
        "test_the_arm_without_a_debugger_reads_nothing_about_one": 0,
        "test_the_deadline_does_not_wait_for_a_slow_model": 0,
        "test_the_same_seed_gives_the_same_trajectory": 0,
        "test_the_text_form_is_taught_in_text_mode_alone": 0,
    },
    "tests/integration/apiserver/test_api_server.py": {
        "test_tests_that_need_a_server_say_why_they_are_skipped": 0,
    },
    "tests/integration/benchmarks/test_examples.py": {
        "test_arms_run_the_same_tasks_side_by_side_and_are_compared": 0,
        "test_examples_are_broken_and_can_be_solved": 0,
    },
    "tests/integration/benchmarks/test_miniature_kin.py": {
        "test_live_with_a_parser_that_is_code": 0,
        "test_swesmith_and_r2e_gym": 0,
    },
    "tests/integration/benchmarks/test_miniature_swebench.py": {
        "test_an_empty_patch_does_not_and_the_tests_are_nobody_elses": 0,
    },
    "tests/integration/cli/test_check_command.py": {
        "test_tasks_are_checked_and_a_result_warns_of_one_that_passes_already": 0,
    },
    "tests/integration/cli/test_image_command.py": {
        "test_an_image_has_only_wheels_with_the_hashes_of_the_manifest": 0,
        "test_an_image_is_built_once_and_named_in_the_manifest": 0,
        "test_the_image_of_a_directory_has_the_environment_that_init_proposes": 0,
    },
    "tests/integration/cli/test_init_at_a_terminal.py": {
        "test_a_missing_python_is_installed_only_after_yes": 2,
        "test_a_repository_whose_tests_all_pass_is_a_success": 0,
        "test_ctrl_c_at_the_question_leaves_the_manifest_as_it_was_written": 0,
        "test_nothing_is_added_after_no": 0,
        "test_what_the_tests_lack_is_added_after_yes": 0,
        "test_without_a_terminal_nothing_is_asked": 1,
        "test_yes_asks_nothing": 0,
    },
    "tests/integration/cli/test_lock_command.py": {
        "test_run_names_tasks_that_are_not_locked_and_runs_them": 0,
        "test_what_cannot_be_locked_has_a_reason": 1,
    },
    "tests/integration/cli/test_migrate_and_run.py": {
        "test_the_python_of_the_page_about_migration_runs": 0,
    },
    "tests/integration/cli/test_run_command.py": {
        "test_a_bare_repository_needs_only_an_agent": 0,
        "test_a_debugger_that_cannot_start_is_a_note_beside_the_solutions_outcome": 0,
        "test_an_agent_that_steps_after_the_end_keeps_its_outcome": 0,
        "test_an_unsolved_episode_counts": 0,
        "test_json_goes_to_standard_output_alone": 0,
        "test_leaving_the_debugger_interrupts_the_run": 0,
        "test_results_inside_the_repository_are_no_part_of_it": 0,
        "test_run_and_replay_read_a_repository_outside_of_the_manifests_directory_only_if_allowed": 0,
        "test_the_debugger_stops_after_each_step": 0,
    },
    "tests/integration/cli/test_run_interrupted.py": {
        "test_an_episode_that_kills_its_workers_is_lost_and_others_are_not": 0,
        "test_an_interrupted_run_stops_soon_and_goes_on_later": 0,
    },
    "tests/integration/cli/test_run_repository.py": {
        "test_a_model_debugs_a_repository_as_the_readme_runs_it": 0,
        "test_a_repository_is_checked_in_the_same_environment": 0,
        "test_a_repository_is_run_in_the_environment_that_init_proposes": 0,
        "test_a_repository_keeps_its_environment_when_the_index_has_newer_versions_or_is_not_there": 0,
        "test_a_requirement_that_nothing_has_is_named_with_the_tests_that_lack_it": 0,
    },
    "tests/integration/cli/test_run_traced.py": {
        "test_a_collector_that_is_not_there_costs_a_warning": 0,
        "test_a_run_is_a_trace_and_the_sandbox_knows_nothing_of_it": 0,
    },
    "tests/integration/docs/test_commands.py": {
        "test_values_in_files": 5,
    },
    "tests/integration/docs/test_debugger_page.py": {
        "test_the_session_of_the_page": 0,
    },
    "tests/integration/docs/test_readme.py": {
        "test_the_hand_written_manifest_and_tool_run": 0,
        "test_the_python_api_in_ten_lines": 0,
    },
    "tests/integration/env/test_documented_code.py": {
        "test_gymnasium": 0,
        "test_writing_a_task": 0,
        "test_writing_an_agent": 0,
    },
    "tests/integration/env/test_gymnasium.py": {
        "test_an_episode_through_gymnasium": 0,
        "test_one_environment_may_have_a_score_where_another_has_none": 0,
        "test_the_check_passes_for_texts_as_actions": 0,
        "test_vector_environments": 0,
    },
    "tests/integration/env/test_plugin_package.py": {
        "test_a_manifest_gives_an_installed_tool_its_options": 0,
        "test_an_installed_adapter_makes_tasks_of_rows": 0,
    },
    "tests/integration/env/test_repo_env.py": {
        "test_a_deadline_that_passes_between_steps_is_told_by_the_next": 0,
        "test_a_read_only_file_changed_by_a_shell_does_not_travel": 0,
        "test_named_tests_are_what_counts": 0,
        "test_stop_when_eval_passes": 0,
        "test_the_deadline_interrupts_a_step_and_scores": 0,
        "test_the_rewrite_limit_ends_the_episode": 0,
        "test_the_same_without_blocking": 0,
        "test_the_solution_agent_path": 0,
    },
    "tests/integration/episodes/agent_pod/test_agent_pod_faults.py": {
        "test_a_store_that_is_away_loses_nothing": 0,
        "test_an_outcome_that_neither_store_nor_pod_can_hold_is_reported": 0,
        "test_an_agent_that_takes_over_from_another_fetches_no_source_for_an_external_driver": 0,
    },
    "tests/integration/episodes/agent_pod/test_agent_pod_replay.py": {
        "test_an_agent_that_is_lost_in_the_second_pod_is_replaced_there": 0,
    },
    "tests/integration/episodes/agent_pod/test_agent_pod_resume.py": {
        "test_a_cost_limit_counts_what_earlier_attempts_have_cost": 0,
        "test_a_model_that_answers_only_429_is_reported": 0,
        "test_a_model_that_fails_leaves_the_pod_to_a_later_try": 0,
        "test_a_model_that_is_out_is_not_asked_by_more_episodes": 0,
        "test_a_prompt_that_no_other_try_could_shorten_ends_the_episode": 0,
        "test_a_second_signal_ends_a_worker_at_once_and_another_goes_on": 0,
        "test_a_wrong_key_is_final_at_the_first_try": 0,
        "test_another_worker_takes_over_while_the_first_still_runs": 0,
        "test_the_solution_agent_walks_its_way_again": 0,
    },
    "tests/integration/episodes/test_many_episodes.py": {
        "test_a_process_whose_loop_is_blocked_is_killed_and_its_episode_lost_after_a_retry": 0,
        "test_neighbours_of_an_episode_that_ends_its_process_run_again_alone_and_are_not_blamed": 1,
        "test_twenty_episodes_share_a_process": 0,
    },
    "tests/integration/llm/test_llm_human_at_a_terminal.py": {
        "test_a_person_answers": 0,
    },
    "tests/integration/llm/test_llm_keys_stay_hidden.py": {
        "test_no_fault_shows_a_key": 12,
    },
    "tests/integration/llm/test_llm_limits_of_processes.py": {
        "test_requests_at_once_are_limited_across_processes": 0,
        "test_what_one_process_uses_another_waits_for": 0,
    },
    "tests/integration/llm/test_llm_over_http.py": {
        "test_more_patience_may_be_configured": 1,
        "test_what_does_not_pass_ends_after_a_bounded_number_of_tries": 5,
        "test_what_limits_hold_up_is_reported": 0,
    },
    "tests/integration/llm/test_llm_tokenizer_from_hub.py": {
        "test_a_tokenizer_is_fetched_by_name_with_the_token_and_kept": 0,
    },
    "tests/integration/operator/test_operator_replicas.py": {
        "test_wrong_settings_are_named": 1,
    },
    "tests/integration/runner/debugger/test_debug_entrypoints.py": {
        "test_an_inner_pdb_is_left_out": 2,
    },
    "tests/integration/runner/debugger/test_debug_like_python.py": {
        "test_a_module_with_a_name_of_the_library_is_imported": 0,
        "test_modules_on_the_path_of_the_environment_are_imported": 1,
        "test_no_frame_of_the_debugger_is_on_the_stack_of_a_command": 2,
        "test_no_frame_of_the_debugger_is_on_the_stack_of_a_test": 0,
        "test_no_frame_of_the_debugger_is_on_the_stack_of_the_program": 2,
        "test_the_program_sees_what_it_sees_alone": 2,
        "test_the_start_module_of_the_environment_runs_as_under_plain_python": 1,
    },
    "tests/integration/runner/debugger/test_debug_programs.py": {
        "test_multiprocessing": 0,
        "test_programs_that_change_their_surroundings": 0,
    },
    "tests/integration/runner/debugger/test_debug_pytest.py": {
        "test_a_conftest_of_the_root_that_cannot_be_imported_ends_the_program_as_in_pytest": 0,
        "test_a_step_out_of_a_fixture_goes_on_in_the_tests": 0,
        "test_a_test_file_with_a_syntax_error": 0,
        "test_capture_in_the_configuration_does_not_hide_output": 0,
        "test_pdb_option_stops_in_the_innermost_frame_of_the_workspace": 1,
        "test_time_at_a_stop_does_not_count_for_faulthandler": 0,
        "test_time_at_a_stop_does_not_count_for_pytest_timeout": 0,
    },
    "tests/integration/runner/debugger/test_debug_shell_commands.py": {
        "test_the_first_program_of_a_shell_command_is_debugged": 2,
    },
    "tests/integration/runner/debugger/test_debug_steps.py": {
        "test_steps_out_of_a_generator_as_pdb_does": 1,
        "test_where_pdb_loses_the_caller_the_step_ends_there": 2,
    },
    "tests/integration/runner/test_runner_channel.py": {
        "test_the_check_of_the_runners_files_passes": 0,
    },
    "tests/integration/runner/test_runner_endings.py": {
        "test_no_daemon_that_forks_all_the_time_is_left": 0,
        "test_nothing_survives_the_end": 2,
    },
    "tests/integration/runner/test_runner_files.py": {
        "test_a_workspace_with_too_many_or_too_large_changes_has_no_digest": 0,
    },
    "tests/integration/runner/test_runner_shell.py": {
        "test_the_shell_survives": 8,
    },
    "tests/integration/sandbox/test_installed_projects.py": {
        "test_a_project_that_cannot_be_built_names_the_remedy": 0,
        "test_install_none_leaves_the_repository_as_it_is": 0,
        "test_metadata_scripts_and_plugins_of_a_src_layout_work": 0,
        "test_no_program_that_the_repository_names_runs_outside_the_sandbox": 0,
        "test_setup_commands_install_where_the_repository_itself_is_not_installed": 0,
        "test_the_agents_tools_see_the_installed_project_and_the_repair_is_resolved": 0,
    },
    "tests/integration/sandbox/test_local_limits.py": {
        "test_a_busy_program_is_ended_by_its_processor_time": 0,
    },
    "tests/integration/sandbox/test_resolving.py": {
        "test_a_conflict_leaves_out_the_later_list_although_older_versions_have_no_wheel": 0,
        "test_a_file_with_another_hash_is_not_installed": 1,
        "test_a_platform_gets_the_hashes_of_its_own_wheels": 0,
        "test_an_environment_of_hashed_lines_is_installed_once": 0,
        "test_requirements_get_versions_and_what_contradicts_or_has_no_wheel_is_left_out": 0,
        "test_requirements_that_need_what_has_no_wheel_do_not_stop_the_others": 0,
        "test_what_cannot_be_resolved_at_all_is_an_error": 1,
        "test_what_the_hashed_lines_do_not_name_is_installed_beside_them": 0,
    },
    "tests/integration/sandbox/test_task_environments.py": {
        "test_an_unfinished_environment_is_built_anew": 0,
    },
    "tests/integration/session/scoring/test_agreement_with_pytest.py": {
        "test_a_subtest_that_changed_code_skips_by_the_exception_that_pytest_replaces_is_no_pass": 0,
        "test_styles_count_as_pytest_counts_them": 1,
    },
    "tests/integration/session/scoring/test_environment_failures.py": {
        "test_the_environment_is_not_counted": 2,
    },
    "tests/integration/session/scoring/test_plugin_reports.py": {
        "test_a_shell_line_that_replaces_variables_reports_too": 1,
        "test_every_outcome_is_reported": 2,
        "test_the_descriptors_and_the_plugin_stay_with_the_session": 1,
    },
    "tests/integration/session/scoring/test_plugins.py": {
        "test_what_a_conftest_puts_onto_the_frameworks_is_not_tampering": 0,
    },
    "tests/integration/session/scoring/test_scored_like_python.py": {
        "test_a_module_with_a_name_of_the_library_is_imported": 0,
        "test_a_program_that_traces_itself_ends_as_it_does_alone": 2,
        "test_no_frame_of_the_runner_is_on_the_stack_of_the_program": 2,
        "test_the_program_sees_what_it_sees_alone": 2,
    },
    "tests/integration/session/scoring/test_scoring_attacks.py": {
        "test_code_that_avoids_the_tests_gains_nothing": 3,
        "test_code_that_reaches_into_pytest_is_marked": 2,
        "test_files_around_the_tests_gain_nothing": 2,
        "test_the_canary_runs_however_pytest_starts": 1,
    },
    "tests/integration/session/scoring/test_wrapped_programs.py": {
        "test_code_under_test_that_leaves_early_does_not_count": 5,
    },
    "tests/integration/session/spoof/test_spoof_attacks.py": {
        "test_an_honest_repair_is_resolved_without_a_word_about_tampering": 1,
    },
    "tests/integration/session/spoof/test_spoof_limits.py": {
        "test_known_limit_data_of_tests_rewritten_while_they_run": 0,
        "test_known_limit_isolated_pythons_of_a_shell_line_are_not_watched": 0,
        "test_known_limit_sys_exit_in_a_program_of_a_shell_line": 0,
        "test_known_limit_values_that_recognise_what_they_are_compared_with": 0,
    },
    "tests/integration/session/test_newer_than_setup.py": {
        "test_the_solution_is_built": 0,
    },
    "tests/integration/session/test_preparation.py": {
        "test_a_bug_that_keeps_tests_from_running_does_not_fail_the_reset": 1,
        "test_an_environment_that_cannot_run_the_tests_fails_the_reset": 3,
    },
    "tests/integration/session/test_sandbox_deaths.py": {
        "test_a_runner_without_resources_is_a_death_of_the_sandbox": 1,
    },
    "tests/integration/session/test_session.py": {
        "test_a_repair_counts_whatever_gitignore_has": 1,
        "test_more_changes_than_can_be_carried_count": 0,
    },
    "tests/integration/session/test_workspace_commit.py": {
        "test_a_git_that_fails_leaves_nothing": 1,
    },
    "tests/integration/sidecar/test_sidecar_binding.py": {
        "test_a_bind_that_makes_no_sense_binds_nothing": 2,
        "test_one_that_was_restarted_is_never_bound": 0,
    },
    "tests/integration/sidecar/test_sidecar_calls.py": {
        "test_a_call_that_takes_long_is_asked_again_until_it_is_answered": 0,
    },
    "tests/integration/sidecar/test_sidecar_connections.py": {
        "test_unfinished_headers_by_the_thousand_take_no_memory": 1,
    },
    "tests/integration/sidecar/test_sidecar_endings.py": {
        "test_an_idle_driver_ends_it_and_it_is_scored_as_it_is": 0,
        "test_an_operator_that_comes_late_costs_no_outcome": 0,
    },
    "tests/integration/sidecar/test_sidecar_process.py": {
        "test_a_signal_ends_it_and_a_restart_knows_that_its_trajectory_is_lost": 0,
    },
    "tests/integration/test_wheel.py": {
        "test_tasks_of_the_demo_are_resolved_from_the_wheel_alone": 0,
    },
    "tests/integration/tools/test_tool_pdb_edits.py": {
        "test_breakpoints_stay_on_their_lines": 2,
    },
    "tests/integration/tools/test_tool_rewrite.py": {
        "test_what_cannot_be_done_is_told_and_changes_nothing": 8,
    },
    "tests/simulation/test_simulation.py": {
        "test_a_model_that_is_out_for_two_hours_ends_no_episode_and_loses_no_attempt": 0,
        "test_a_quota_is_used_and_not_tried_in_vain": 1,
        "test_a_reverted_fix_is_found": 5,
        "test_a_schedule_that_fails_is_shrunk_to_what_it_needs": 0,
        "test_a_set_counts_its_episodes_and_shows_what_they_wait_for": 1,
        "test_episodes_survive_faults": 2,
        "test_sets_survive_their_users": 1,
    },
    "tests/unit/api/test_reader_bounds.py": {
        "test_a_document_of_too_many_values_is_refused": 0,
        "test_every_document_has_its_own_bounds": 0,
    },
    "tests/unit/cli/test_hostile_directories.py": {
        "test_init_reads_a_strangers_repository_as_regular_files_of_bounded_size": 10,
    },
    "tests/unit/cli/test_init_survey.py": {
        "test_what_a_developer_installs_for_the_tests_is_found": 5,
        "test_what_is_proposed_is_what_run_installs_without_building": 0,
        "test_what_run_would_not_install_from_wheels_is_left_out_with_a_remedy": 8,
    },
    "tests/unit/cli/test_report_plots.py": {
        "test_a_directory_takes_every_figure_by_its_name": 0,
        "test_one_file_a_figure_and_the_same_bytes_again": 0,
    },
    "tests/unit/operator/render/test_render_forms.py": {
        "test_each_look_agrees": 13,
        "test_templates_that_look_at_values_are_rendered": 0,
    },
    "tests/unit/sidecar/test_openapi.py": {
        "test_it_is_valid": 0,
    },
    "tests/unit/tracing/test_tracer.py": {
        "test_nothing_is_imported_while_traces_are_off": 0,
    },
}
"""Number of variations of a test in ``make test``, evenly chosen among its parameters. 0 for a long test."""

_BUILT = frozenset({"api_server_binaries", "built_program", "helm", "s3_server"})
"""Fixtures of programs that ``make binaries`` builds."""


def mark(items: Iterable[pytest.Item]) -> None:
    """Mark tests ``thorough`` that ``make test`` does not run."""
    variations: dict[tuple[str, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if not _BUILT.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.thorough)
        module, _, test = item.nodeid.partition("[")[0].partition("::")
        elsewhere = any(item.get_closest_marker(name) for name in ("thorough", "matrix"))
        if test in KEPT.get(module, {}) and not elsewhere:
            variations[module, test].append(item)
    for (module, test), found in variations.items():
        count = KEPT[module][test]
        kept = {number * len(found) // count for number in range(count)}
        for number, item in enumerate(found):
            if number not in kept:
                item.add_marker(pytest.mark.thorough)
