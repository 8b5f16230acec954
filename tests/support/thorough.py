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
        "test_terminal_escapes_of_programs_are_printed_as_text": 0,
    },
    "tests/integration/agents/test_provenance.py": {
        "test_a_long_parameter_is_recorded_by_its_digest": 0,
        "test_the_digest_of_a_prompt_covers_its_template_and_included_templates": 0,
    },
    "tests/integration/agents/test_resuming_agents.py": {
        "test_another_agent_pod_continues_with_the_same_messages": 0,
    },
    "tests/integration/agents/test_run_thinking.py": {
        "test_a_benchmark_is_debugged_and_solved": 0,
        "test_a_person_can_act_as_the_model": 0,
        "test_a_set_stops_at_its_cost_limit_and_continues_with_a_higher_limit": 0,
        "test_debug_stops_after_each_reply_before_its_call_is_made": 0,
        "test_the_patch_is_applied_after_a_question": 0,
    },
    "tests/integration/agents/test_sent_requests.py": {
        "test_the_next_request_shows_a_compaction": 0,
        "test_the_trajectory_has_every_request_byte_for_byte": 1,
    },
    "tests/integration/agents/test_show_agent.py": {
        "test_a_prompt_fits_on_one_page": 1,
        "test_every_form_of_a_request_is_shown": 0,
        "test_the_body_is_what_an_episode_sends_byte_for_byte": 1,
    },
    "tests/integration/agents/test_thinking_agents.py": {
        "test_a_reply_that_is_only_a_call_is_parsed_in_every_form": 1,
        "test_a_lost_attempt_counts_against_the_cost_limit": 0,
        "test_failures_of_requests_are_not_in_the_conversation": 0,
        "test_a_model_that_fails_is_not_counted_and_the_changes_before_are_kept_without_a_score": 1,
        "test_a_slow_model_does_not_delay_other_episodes_of_the_process": 0,
        "test_a_new_tool_does_not_change_earlier_messages": 0,
        "test_an_episode_whose_agent_cannot_continue_is_scored": 1,
        "test_an_episode_ends_at_its_cost_limit_and_is_scored": 0,
        "test_an_episode_that_may_not_be_compacted_ends": 0,
        "test_an_episode_without_the_tool_eval_begins_without_a_run_of_the_tests": 0,
        "test_an_evaluation_that_passes_can_end_the_episode": 0,
        "test_automatic_evaluations_can_be_disabled": 0,
        "test_every_request_extends_the_previous_request": 0,
        "test_limits_end_the_episode": 0,
        "test_old_observations_are_removed_when_the_context_is_full": 1,
        "test_reasoning_is_sent_back_unchanged": 1,
        "test_with_reasoning_drop_reasoning_is_not_requested_or_sent_back": 0,
        "test_replies_without_a_call_that_are_not_in_a_row_do_not_end_the_episode": 0,
        "test_requests_of_the_arm_without_a_debugger_do_not_mention_a_debugger": 0,
        "test_the_deadline_does_not_wait_for_a_slow_model": 0,
        "test_the_same_seed_gives_the_same_trajectory": 0,
        "test_the_text_form_is_explained_only_with_tool_calling_text": 0,
    },
    "tests/integration/apiserver/test_api_server.py": {
        "test_tests_without_a_server_are_skipped_with_the_reason": 0,
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
        "test_an_empty_patch_does_not_resolve_and_the_agent_cannot_change_the_tests": 0,
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
        "test_init_succeeds_if_all_tests_pass": 0,
        "test_ctrl_c_at_the_question_leaves_the_manifest_as_it_was_written": 0,
        "test_requirements_are_not_added_after_no": 0,
        "test_missing_requirements_are_added_after_yes": 0,
        "test_without_a_terminal_there_are_no_questions": 1,
        "test_option_yes_answers_all_questions": 0,
    },
    "tests/integration/cli/test_lock_command.py": {
        "test_run_names_tasks_that_are_not_locked_and_runs_them": 0,
        "test_requirements_that_cannot_be_locked_are_reported_with_the_reason": 1,
    },
    "tests/integration/cli/test_migrate_and_run.py": {
        "test_the_python_of_the_page_about_migration_runs": 0,
    },
    "tests/integration/cli/test_run_command.py": {
        "test_a_bare_repository_needs_only_an_agent": 0,
        "test_a_debugger_that_cannot_start_is_a_note_beside_the_solutions_outcome": 0,
        "test_an_agent_that_steps_after_the_end_keeps_its_outcome": 0,
        "test_an_unsolved_episode_counts": 0,
        "test_standard_output_contains_only_the_json": 0,
        "test_leaving_the_debugger_interrupts_the_run": 0,
        "test_results_inside_the_repository_are_not_packed_with_it": 0,
        "test_run_and_replay_read_a_repository_outside_of_the_manifests_directory_only_if_allowed": 0,
        "test_the_debugger_stops_after_each_step": 0,
    },
    "tests/integration/cli/test_run_interrupted.py": {
        "test_an_episode_that_kills_its_workers_is_lost_and_others_are_not": 0,
        "test_an_interrupted_run_stops_and_can_be_continued": 0,
    },
    "tests/integration/cli/test_run_repository.py": {
        "test_a_model_debugs_a_repository_as_the_readme_runs_it": 0,
        "test_a_repository_is_checked_in_the_same_environment": 0,
        "test_a_repository_is_run_in_the_environment_that_init_proposes": 0,
        "test_a_cached_environment_is_reused_without_the_package_index": 0,
        "test_an_unavailable_requirement_is_reported_with_the_tests_that_need_it": 0,
    },
    "tests/integration/cli/test_run_traced.py": {
        "test_an_unreachable_collector_does_not_fail_the_run": 0,
        "test_a_run_is_traced_and_the_sandbox_gets_no_trace_variables": 0,
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
        "test_vector_infos_mark_environments_without_a_score": 0,
        "test_the_check_passes_for_texts_as_actions": 0,
        "test_vector_environments": 0,
    },
    "tests/integration/env/test_plugin_package.py": {
        "test_a_manifest_gives_an_installed_tool_its_options": 0,
        "test_an_installed_adapter_makes_tasks_of_rows": 0,
    },
    "tests/integration/env/test_repo_env.py": {
        "test_the_next_step_reports_a_deadline_that_passed_between_steps": 0,
        "test_a_read_only_file_changed_by_a_shell_is_not_in_the_patch": 0,
        "test_named_tests_are_what_counts": 0,
        "test_stop_when_eval_passes": 0,
        "test_the_deadline_interrupts_a_step_and_scores": 0,
        "test_the_rewrite_limit_ends_the_episode": 0,
        "test_the_same_without_blocking": 0,
        "test_the_solution_agent_path": 0,
    },
    "tests/integration/episodes/agent_pod/test_agent_pod_faults.py": {
        "test_a_store_that_is_away_loses_nothing": 0,
        "test_an_outcome_is_reported_if_store_and_pod_are_gone": 0,
        "test_an_agent_that_takes_over_from_another_fetches_no_source_for_an_external_driver": 0,
    },
    "tests/integration/episodes/agent_pod/test_agent_pod_replay.py": {
        "test_an_agent_that_is_lost_in_the_second_pod_is_replaced_there": 0,
    },
    "tests/integration/episodes/agent_pod/test_agent_pod_resume.py": {
        "test_a_cost_limit_counts_what_earlier_attempts_have_cost": 0,
        "test_a_model_that_answers_only_429_is_reported": 0,
        "test_after_a_failure_of_the_model_the_pod_is_kept_for_another_try": 0,
        "test_further_episodes_do_not_call_a_model_during_an_outage": 0,
        "test_a_prompt_that_no_other_try_could_shorten_ends_the_episode": 0,
        "test_a_second_signal_ends_an_agent_pod_immediately_and_another_resumes": 0,
        "test_an_unauthorized_request_is_not_retried": 0,
        "test_another_agent_pod_takes_over_while_the_first_still_runs": 0,
        "test_the_solution_agent_resumes_after_a_restart": 0,
    },
    "tests/integration/episodes/test_many_episodes.py": {
        "test_a_process_whose_loop_is_blocked_is_killed_and_its_episode_lost_after_a_retry": 0,
        "test_episodes_that_shared_a_process_with_a_crash_run_again_separately": 1,
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
        "test_processes_share_the_token_limit": 0,
    },
    "tests/integration/llm/test_llm_over_http.py": {
        "test_the_maximum_number_of_tries_can_be_configured": 1,
        "test_a_repeated_temporary_failure_raises_after_the_maximum_number_of_tries": 5,
        "test_waits_for_configured_limits_are_reported": 0,
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
        "test_programs_that_change_their_streams_paths_and_modules": 0,
    },
    "tests/integration/runner/debugger/test_debug_pytest.py": {
        "test_a_conftest_of_the_root_that_cannot_be_imported_ends_the_program_as_in_pytest": 0,
        "test_a_step_out_of_a_fixture_stops_in_the_tests": 0,
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
        "test_end_processes_kills_a_daemon_that_forks_repeatedly": 0,
        "test_every_process_is_killed_when_the_runner_ends": 2,
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
        "test_requirements_in_conflict_or_without_a_wheel_are_left_out": 0,
        "test_a_requirement_whose_dependency_has_no_wheel_is_left_out_alone": 0,
        "test_unresolvable_requirements_raise_setup_failed": 1,
        "test_distributions_without_hashes_are_installed_separately": 0,
    },
    "tests/integration/sandbox/test_task_environments.py": {
        "test_an_unfinished_environment_is_built_again": 0,
    },
    "tests/integration/session/scoring/test_agreement_with_pytest.py": {
        "test_a_subtest_skipped_by_changed_code_with_unittest_skiptest_does_not_pass": 0,
        "test_test_styles_are_counted_as_by_pytest": 1,
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
        "test_a_conftest_that_patches_a_test_framework_is_not_tampering": 0,
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
        "test_an_honest_repair_is_resolved_without_notes_on_tampering": 1,
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
        "test_a_repair_counts_regardless_of_gitignore": 1,
        "test_too_many_changes_count_as_unresolved": 0,
    },
    "tests/integration/session/test_workspace_commit.py": {
        "test_a_git_that_fails_leaves_nothing": 1,
    },
    "tests/integration/sidecar/test_sidecar_binding.py": {
        "test_an_invalid_bind_request_is_refused": 2,
        "test_a_restarted_sidecar_cannot_be_bound": 0,
    },
    "tests/integration/sidecar/test_sidecar_calls.py": {
        "test_a_call_that_takes_long_is_asked_again_until_it_is_answered": 0,
    },
    "tests/integration/sidecar/test_sidecar_connections.py": {
        "test_thousands_of_unfinished_headers_do_not_use_much_memory": 1,
    },
    "tests/integration/sidecar/test_sidecar_endings.py": {
        "test_an_idle_driver_ends_it_and_it_is_scored_as_it_is": 0,
        "test_a_late_operator_does_not_change_the_outcome": 0,
    },
    "tests/integration/sidecar/test_sidecar_process.py": {
        "test_a_restarted_sidecar_reports_that_its_trajectory_is_lost": 0,
    },
    "tests/integration/test_wheel.py": {
        "test_tasks_of_the_demo_are_resolved_from_the_wheel_alone": 0,
    },
    "tests/integration/tools/test_tool_pdb_edits.py": {
        "test_breakpoints_stay_on_their_lines": 2,
    },
    "tests/integration/tools/test_tool_rewrite.py": {
        "test_an_invalid_rewrite_is_refused_without_changes": 8,
    },
    "tests/simulation/test_simulation.py": {
        "test_a_model_that_is_out_for_two_hours_ends_no_episode_and_loses_no_attempt": 0,
        "test_a_full_quota_does_not_cause_refused_requests": 1,
        "test_a_reverted_fix_is_found": 5,
        "test_a_schedule_that_fails_is_shrunk_to_what_it_needs": 0,
        "test_a_set_counts_its_episodes_and_shows_what_they_wait_for": 1,
        "test_episodes_end_correctly_under_faults": 2,
        "test_sets_end_correctly_under_actions_of_users": 1,
    },
    "tests/unit/api/test_reader_bounds.py": {
        "test_a_document_of_too_many_values_is_refused": 0,
        "test_every_document_has_its_own_bounds": 0,
    },
    "tests/unit/cli/test_hostile_directories.py": {
        "test_init_reads_a_strangers_repository_as_regular_files_of_bounded_size": 10,
    },
    "tests/unit/cli/test_init_survey.py": {
        "test_requirements_that_developers_install_for_tests_are_found": 5,
        "test_proposed_requirements_can_be_installed_without_building": 0,
        "test_requirements_that_are_not_wheels_are_left_out_with_a_remedy": 8,
    },
    "tests/unit/cli/test_report_plots.py": {
        "test_a_directory_takes_every_figure_by_its_name": 0,
        "test_one_file_a_figure_and_the_same_bytes_again": 0,
    },
    "tests/unit/operator/render/test_render_forms.py": {
        "test_each_template_with_a_condition_gives_the_same_output": 13,
        "test_templates_with_conditions_on_values_are_rendered": 0,
    },
    "tests/unit/sidecar/test_openapi.py": {
        "test_the_document_is_valid": 0,
    },
    "tests/unit/tracing/test_tracer.py": {
        "test_opentelemetry_is_not_imported_while_traces_are_off": 0,
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
