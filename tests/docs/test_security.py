"""The page on security: each promise has tests that show it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from tests.helpers.documentation import ROOT

PAGE: Final = (ROOT / "docs/explanation/security.md").read_text()
END: Final = "## Set up a real site"  # after the strangers

# Advice that only a person, a network or a forge can follow. It names no behaviour of gitboot that a test could show.
ADVICE: Final = {
    "Change the workflow file",
    "Change what a machine boots",
    "Read and change what goes to an `rsync://` target",
    "Send a machine another boot file",
}

# The tests of each promise, below tests/. The key is the bold text at the beginning of the row or the list item.
TESTED_BY: Final[Mapping[str, tuple[str, ...]]] = {
    # A client on the provisioning network
    "Read boot files": (
        "resolve/test_secret_scan.py::test_t8_each_kind_of_secret_is_found_anywhere",
        "endpoint/test_boot_responses_secrets.py::test_nothing_of_a_secret_is_published_except_its_encrypted_form",
    ),
    "List all machines": ("render/test_web_servers.py::test_the_list_of_all_machines_is_for_clients_on_the_same_host",),
    "Take a one-time boot": (
        "endpoint/test_boot_gate.py::test_if_the_fleet_names_clients_only_they_count",
        "controller/records/test_provisioning_installations.py::"
        "test_a_step_that_takes_long_is_a_condition_that_names_the_last_fetch_and_its_time",
    ),
    "Fetch user data and secrets": (
        "endpoint/test_boot_responses_secrets.py::test_a_client_that_is_not_a_machine_of_the_fleet_gets_no_secret",
        "endpoint/test_boot_responses_secrets.py::test_the_report_of_the_installer_ends_its_secrets_before_the_instance_reads_it",
        "render/test_token_keys.py::test_t6_a_client_that_asks_by_uuid_gets_a_token_only_if_the_machine_may_ask_by_uuid",
    ),
    "Avoid detection": (
        "endpoint/test_boot_responses_secrets.py::"
        "test_finding_s5_a_stranger_who_fetches_a_secret_is_an_event_a_count_and_a_condition",
        "controller/records/test_evidence_secret_fetches.py::"
        "test_the_first_fetch_by_each_address_is_an_event_and_repeats_are_counted",
    ),
    "Report an installation": (
        "controller/records/test_evidence.py::test_a_fetch_and_a_report_count_if_the_fleet_accepts_them_as_evidence",
        "controller/records/test_evidence.py::test_a_fetch_waits_for_its_bmc_over_a_restart",
        "endpoint/test_boot_responses_secrets.py::test_finding_s5_a_client_that_does_not_count_is_recorded_too",
    ),
    "Keep connections and request bodies open": (
        "endpoint/test_access_control.py::test_t5_the_oldest_idle_connection_of_an_address_is_closed_first",
        "endpoint/test_connections_limits.py::"
        "test_finding_s4_bodies_that_never_end_are_rejected_while_another_client_is_served",
        "endpoint/test_connections_limits.py::test_finding_s4_a_body_that_arrives_slowly_ends_at_a_deadline",
    ),
    "Other installations": (
        "endpoint/test_boot_gate.py::test_e1_a_killed_endpoint_serves_no_boot_twice",
        "endpoint/test_boot_gate.py::test_several_workers_share_the_served_boots",
        "endpoint/test_boot_gate.py::test_e6_a_client_that_is_not_a_loader_gets_the_fallback_and_consumes_nothing",
    ),
    "Guessed tokens": (
        "controller/instance/test_state_directory_token_keys.py::"
        "test_t6_a_stranger_who_knows_all_of_git_can_report_nothing_and_gets_no_secret",
    ),
    "Operators' pages": (
        "endpoint/test_app.py::test_a_client_that_is_not_an_operator_cannot_distinguish_pages_from_missing_paths",
        "endpoint/test_access_control.py::test_t12_a_client_on_this_host_is_an_operator_if_its_headers_show_no_proxy_and_no_foreign_host",
        "scenarios/test_ordinary_days.py::"
        "test_finding_s17_readyz_shows_strangers_neither_the_account_nor_the_reason_of_a_stop",
    ),
    "Forged addresses": (
        "endpoint/test_access_control.py::test_the_client_address_is_the_one_before_the_last_trusted_proxy",
    ),
    "Other files": (
        "endpoint/test_app.py::test_every_missing_path_gets_the_same_404",
        "endpoint/test_app.py::test_an_invalid_request_gets_no_file",
    ),
    "Endless requests": (
        "endpoint/test_connections_limits.py::"
        "test_finding_s4_bodies_that_never_end_are_rejected_while_another_client_is_served",
        "endpoint/test_access_control.py::test_t5_a_machine_is_served_while_another_client_holds_many_connections",
        "endpoint/test_access_control.py::test_t5_a_request_head_must_arrive_in_time",
        "endpoint/test_boot_responses_secrets.py::"
        "test_finding_s5_many_addresses_fill_neither_the_events_nor_the_ledger",
        "controller/records/test_provisioning_installations.py::"
        "test_finding_s5_a_repeated_report_is_one_event_for_each_address",
        "scenarios/test_installer_reports.py::test_a_failure_is_posted_with_the_last_lines_of_a_log",
    ),
    "Terminal escapes": (
        "scenarios/test_hostile_text.py::test_finding_s7_no_machine_controls_the_terminal_that_shows_events",
        "scenarios/test_hostile_text.py::test_no_bmc_controls_the_terminal_that_shows_it",
    ),
    "Webhooks": ("endpoint/test_api_webhooks.py::test_a_push_without_the_secret_does_nothing",),
    # The author of a pull request
    "Acknowledge a guard": (
        "controller/test_commit_acceptance_signatures.py::test_t9_without_a_requirement_an_acknowledgement_counts_and_its_author_is_named",
        "controller/test_commit_acceptance_signatures.py::"
        "test_t9_a_copied_acknowledgement_counts_for_no_reinstallation_if_it_must_be_signed",
        "controller/test_commit_acceptance_signatures.py::test_t9_only_an_approval_counts_if_approvals_are_required",
    ),
    "Change a diskless system": (
        "review/test_guards.py::test_percentages_count_in_the_fleet_and_in_each_group_and_numbers_in_small_ones",
    ),
    "Redirect secrets": (
        "review/test_guards_hidden_changes.py::"
        "test_a_server_with_a_new_secret_or_a_new_place_for_it_has_the_risk_of_access",
    ),
    "Choose the addresses": (
        "artifacts/test_availability.py::test_only_needed_artifacts_are_checked",
        "artifacts/test_availability.py::test_artifact_checks_can_be_switched_off",
        "cli/commands/test_artifacts.py::test_a_registry_that_is_not_listed_gets_no_request",
    ),
    "Use time and memory": (
        "evaluator/test_evaluation.py::test_t1_machines_are_served_while_the_evaluation_of_a_commit_does_not_end",
        "git/test_fetch.py::test_t4_the_pack_of_a_remote_is_unpacked_in_another_process_and_within_limits",
    ),
    "Add Python modules": ("test_files_output.py::test_finding_s1_no_module_of_the_branch_is_imported",),
    "Code in CI": (
        "cli/commands/test_init.py::test_t13_no_code_of_the_branch_runs_in_the_job_with_the_token",
        "cli/commands/test_init.py::test_t13_only_the_job_without_the_branch_may_write",
    ),
    "Writes through symlinks": (
        "cli/commands/test_init_ci_hostile.py::test_finding_s1_no_symlink_of_a_branch_redirects_the_output_of_the_review",
        "test_files_output.py::test_finding_s1_no_command_writes_through_a_symlink_of_the_branch",
        "test_files_output.py::test_finding_s1_an_import_deletes_nothing_outside_its_folder",
    ),
    "A forged review": (
        "cli/commands/test_init_ci_hostile.py::test_finding_s2_a_review_file_in_the_branch_is_not_posted",
        "cli/commands/test_init_ci_hostile.py::"
        "test_finding_s2_if_the_endpoint_does_not_respond_the_comment_of_the_failed_review_replaces_an_earlier_one",
        "cli/commands/test_init_ci_hostile.py::test_finding_s2_a_rerun_job_of_an_earlier_commit_posts_nothing",
        "cli/commands/test_init_ci_hostile.py::"
        "test_finding_s9_a_second_push_changes_the_comment_of_the_bot_and_no_other_with_the_marker",
        "cli/commands/test_diff_accepted.py::test_an_account_that_the_forge_does_not_name_edits_no_comment",
    ),
    "Injected text": (
        "cli/commands/test_init_ci_hostile.py::test_finding_s14_no_file_name_of_a_branch_is_a_command_of_the_ci_system",
        "scenarios/test_hostile_text.py::test_finding_s14_no_file_name_begins_a_command_of_a_ci_system",
        "scenarios/test_hostile_text.py::test_finding_s17_no_name_of_an_author_ends_explain_or_controls_a_terminal",
        "scenarios/test_hostile_text.py::test_no_format_contains_terminal_commands",
        "review/formats/test_markdown.py::test_no_text_from_yaml_is_markdown_or_html",
        "review/formats/test_markdown.py::test_the_path_of_a_file_mentions_no_account",
    ),
    "Hidden servers": (
        "review/test_guards_hidden_changes.py::"
        "test_finding_s10_a_line_for_one_server_is_shown_even_if_a_group_begins_with_another_server",
        "review/test_guards_hidden_changes.py::test_a_server_with_its_own_line_is_in_no_other_group",
    ),
    "Hidden installers": (
        "review/test_guards_hidden_changes.py::"
        "test_finding_s11_an_image_that_claims_to_write_no_disk_is_an_installation_until_acknowledged",
    ),
    "Wider access": (
        "review/test_guards_hidden_changes.py::test_finding_s17_a_change_of_allowed_clients_is_not_shown_as_a_change_of_0_servers",
    ),
    "Looser guards": ("review/test_guards.py::test_a_commit_that_loosens_its_own_guards_is_judged_by_the_old_ones",),
    "Stolen BMC passwords": (
        "bmc/test_access_file.py::test_t2_a_pull_request_cannot_send_credentials_outside_their_networks",
        "bmc/test_access_file.py::test_t2_a_new_bmc_is_held_until_somebody_with_a_shell_allows_it",
    ),
    "Files outside the fleet": (
        "cli/commands/test_init_ci_hostile.py::test_finding_s15_a_symlink_in_place_of_the_fleet_folder_is_rejected",
        "git/test_repository.py::test_finding_s15_ci_rejects_a_folder_that_an_instance_rejects",
        "git/test_snapshots.py::test_finding_s15_no_file_behind_a_symlink_of_a_commit_is_read",
    ),
    "Escapes from templates": (
        "resolve/test_templates.py::test_no_expression_escapes_the_sandbox",
        "resolve/test_templates.py::test_no_expression_grows_without_bounds",
    ),
    "Injected boot commands": (
        "test_quoting.py::test_a_word_arrives_unchanged_or_is_rejected",
        "test_quoting.py::test_arguments_arrive_unchanged_or_are_rejected",
    ),
    "A stopped instance": (
        "evaluator/test_evaluation.py::"
        "test_t1_machines_are_served_while_hostile_commits_come_and_the_accepted_one_stays",
    ),
    # An attacker who may push other branches, write tags or comment
    "Block a rollout or a new image": (
        "cli/commands/test_init_update_images.py::test_a_branch_that_a_person_changed_stays_as_it_is",
        "cli/commands/test_init.py::test_a_job_without_gitboot_proposes_the_next_rollout_step_in_a_pull_request",
        "cli/commands/test_init_ci_hostile.py::test_the_job_that_pushes_a_rollout_checks_its_input",
    ),
    "Confused names": (
        "cli/commands/test_init_ci_hostile.py::"
        "test_finding_s2_a_tag_with_the_name_of_the_target_is_not_the_base_of_a_review",
    ),
    # The owner of an action, an image or a package that CI uses
    "Publish a new version": ("cli/commands/test_init.py::test_t13_only_the_job_without_the_branch_may_write",),
    "Replaced packages": (
        "cli/commands/test_init_ci_hostile.py::test_finding_s17_the_job_with_the_token_installs_nothing_without_a_hash",
        "cli/commands/test_init_ci_hostile.py::test_finding_s17_actions_and_images_are_named_by_digest",
    ),
    # An attacker who may push to the followed branch
    "Decide what machines boot": (
        "controller/test_commit_acceptance_signatures.py::"
        "test_a_commit_without_a_trusted_signature_is_rejected_and_the_accepted_one_stays",
    ),
    "Send large objects": (
        "git/test_repository.py::test_a_fetch_works_while_a_malformed_commit_is_among_the_newest",
        "git/test_fetch.py::test_t4_the_pack_of_a_remote_is_unpacked_in_another_process_and_within_limits",
    ),
    "Unsigned commits": (
        "controller/test_commit_acceptance_signatures.py::test_an_unsigned_commit_is_not_evaluated",
        "controller/test_commit_acceptance_signatures.py::test_settings_of_an_unsigned_commit_have_no_effect",
        "controller/test_commit_acceptance_signatures.py::"
        "test_verify_head_accepts_a_signed_commit_on_unsigned_ones_and_verify_range_does_not",
    ),
    "Replayed acknowledgements": (
        "controller/test_commit_acceptance_acknowledgements.py::"
        "test_finding_s3_a_used_acknowledgement_is_not_replayed_by_a_stranger",
        "controller/test_commit_acceptance_acknowledgements.py::"
        "test_a_used_acknowledgement_in_another_form_counts_for_nothing",
    ),
    "Malformed metadata": (
        "git/test_repository.py::test_finding_s13_an_instance_follows_a_branch_with_a_commit_without_an_email_address",
    ),
    # The holder of a trusted signing key
    "Vouch for all content": (
        "controller/test_commit_acceptance_acknowledgements.py::"
        "test_a_rewritten_commit_counts_only_if_a_trusted_key_signs_it",
        "controller/test_commit_acceptance_signatures.py::test_t9_only_an_approval_counts_if_approvals_are_required",
    ),
    "Expired keys": (
        "git/test_signatures.py::test_an_expired_key_does_not_count_even_for_an_old_commit_date",
        "git/test_signatures.py::test_the_key_of_a_forge_counts_for_merges_only",
        "controller/test_commit_acceptance_signatures.py::"
        "test_t9_a_merge_of_the_forge_acknowledges_nothing_with_the_text_of_a_pull_request",
    ),
    # An attacker who may write commit statuses
    "Cause a warning": (
        "controller/records/test_ledger_trust.py::"
        "test_an_unproven_commit_status_is_a_warning_and_does_not_make_the_ledger_unverified",
        "controller/test_forge.py::test_many_statuses_without_proof_do_not_hide_the_proof_of_an_earlier_commit",
    ),
    "A ledger in doubt": (
        "controller/test_commit_judgement.py::test_finding_s12_a_status_by_a_stranger_does_not_make_the_ledger_unverified",
        "controller/test_forge.py::test_a_repeated_old_status_hides_no_newer_one",
    ),
    # An attacker who can write STATE, the ledger or the fetch log
    "Change records and approve commits": (
        "controller/test_operator_requests.py::test_a_record_that_is_set_pending_installs_the_server_once_more",
    ),
    "Open folders": (
        "controller/instance/test_state_directory_permissions.py::test_t7_a_state_directory_that_others_may_write_is_rejected",
        "controller/instance/test_state_directory_permissions.py::test_t7_a_fetch_log_that_everybody_may_write_is_rejected",
        "controller/instance/test_state_directory_permissions.py::"
        "test_finding_s6_another_user_of_the_host_cannot_read_the_output",
    ),
    "A false database": (
        "ledger/test_postgresql.py::test_over_a_network_the_connection_is_encrypted_and_verified_and_the_password_is_in_a_file",
    ),
    # A login on the host of the instance or the endpoint
    "Read OUTPUT": (
        "controller/instance/test_state_directory_permissions.py::"
        "test_finding_s6_nginx_serves_output_as_another_user_by_its_group",
        "scenarios/test_upgrade.py::test_output_stays_readable_by_everybody_until_a_group_is_named",
        "scenarios/test_upgrade.py::test_output_that_is_created_again_for_an_earlier_ledger_stays_readable_by_everybody",
    ),
    "Send requests as an operator": (
        "endpoint/test_access_control.py::test_t12_a_client_on_this_host_is_an_operator_if_its_headers_show_no_proxy_and_no_foreign_host",
        "endpoint/test_access_control.py::test_t12_a_token_is_accepted_from_any_address",
    ),
    "Pretend to be any client": (
        "scenarios/test_ordinary_days.py::test_finding_s6_a_named_proxy_gives_operators_access_by_the_forwarded_address",
    ),
    # A server to which gitboot connects
    "Make gitboot withhold boots": (
        "artifacts/test_availability.py::test_only_an_artifact_that_is_certainly_absent_withholds_a_boot",
        "artifacts/test_availability.py::test_artifact_checks_can_be_switched_off",
    ),
    "Serve another image": (
        "artifacts/test_signatures_keys.py::test_other_openpgp_signatures_are_rejected",
        "artifacts/test_downloads_copies.py::test_a_file_with_a_wrong_digest_is_not_placed",
    ),
    "Stall a Git fetch": (
        "git/test_fetch.py::test_finding_c3_a_server_that_sends_slowly_fails_the_fetch_and_another_process_runs_the_next",
        "controller/test_loop.py::test_finding_c3_a_slow_fetch_is_a_condition_until_it_ends",
    ),
    "Endless answers": (
        "test_http_client.py::test_finding_s16_a_slow_response_ends_at_the_deadline",
        "test_http_client.py::test_a_response_without_end_is_cut_at_its_size",
        "test_http_client.py::test_finding_s16_a_slow_bmc_ends_at_the_deadline",
        "test_http_client.py::test_a_download_below_the_minimum_rate_ends",
        "git/test_fetch.py::test_finding_c3_a_server_that_sends_slowly_fails_the_fetch_and_another_process_runs_the_next",
        "git/test_fetch.py::test_finding_c3_a_pack_that_exceeds_the_disk_limit_is_rejected",
        "artifacts/test_downloads_copies.py::test_a_file_of_an_image_without_a_size_is_read_to_a_limit",
        "publish/targets/test_s3.py::test_finding_s8_an_object_without_an_end_is_read_to_its_limit",
        "image_sources/test_find_releases.py::test_an_index_that_is_wrong_in_any_way_lists_no_release",
        "artifacts/test_archives.py::test_an_archive_that_unpacks_to_far_more_is_refused",
    ),
    "Redirected passwords": (
        "test_http_client.py::test_a_redirect_to_another_origin_carries_no_token",
        "git/test_remote.py::test_t3_credentials_do_not_follow_a_redirect_to_another_server",
        "artifacts/test_oci.py::test_t3_a_redirect_takes_no_token_along",
        "bmc/redfish/test_client_links.py::test_a_link_to_another_host_is_rejected",
        "bmc/redfish/test_transport.py::test_no_password_is_sent_from_https_to_http",
    ),
    "Another machine": (
        "bmc/test_override_steps.py::test_nothing_is_set_on_another_machine_and_an_override_is_cleared_only_where_it_was_set",
        "bmc/test_ipmi.py::test_no_override_is_set_on_another_machine",
        "bmc/test_power_steps.py::test_another_machine_is_never_reset",
    ),
    # A vendor of images
    "Publish a bad release": (
        "cli/commands/test_images_updates.py::test_a_release_that_is_too_young_does_not_hide_an_older_one",
        "cli/commands/test_images_updates.py::test_a_release_without_a_date_has_the_age_of_its_commit",
    ),
    "Publish a file without a signature": (
        "cli/commands/test_images_updates.py::test_a_stream_that_requires_signatures_gets_no_other_image",
    ),
    "Other keys": (
        "cli/commands/test_init_update_images.py::"
        "test_a_release_of_a_vendor_becomes_a_pull_request_once_it_has_the_right_signature",
        "artifacts/test_signatures_keys.py::test_only_the_allowed_keys_may_sign",
    ),
    "Older versions": (
        "cli/commands/test_images_updates.py::test_a_fault_of_the_vendor_changes_nothing_and_is_stated",
    ),
    "Commands in a vendor's files": (
        "cli/commands/test_images_updates.py::"
        "test_text_of_a_vendor_never_reaches_a_commit_or_a_pull_request_as_more_than_data",
        "cli/commands/test_init_update_images.py::"
        "test_the_second_job_pushes_proposals_and_opens_one_pull_request_for_each_once_it_is_ready",
    ),
    "Access to the repository": (
        "cli/commands/test_init_update_images.py::test_no_token_is_in_the_environment_or_in_the_clone_of_the_first_job",
        "cli/commands/test_init_update_images.py::test_the_second_job_refuses_results_of_a_hostile_first_job",
        "cli/commands/test_init_update_images.py::test_only_the_job_that_does_not_read_vendors_may_write",
    ),
    # The operator of a mirror
    "List the machines": ("render/test_server_files.py::test_no_listing_names_a_token",),
    "Unnoticed changes": (
        "controller/test_publication_signed_list.py::"
        "test_finding_m6_a_mirror_is_verified_with_its_url_and_the_public_root_key_alone",
        "controller/test_publication_signed_list.py::"
        "test_an_expired_list_is_rejected_by_readers_and_the_next_instance_renews_it",
    ),
    "Files of gitboot's host": (
        "publish/targets/test_folder.py::test_a_target_that_names_a_file_for_operators_is_an_error",
        "publish/targets/test_folder_rsync.py::test_another_host_cannot_name_a_file_of_this_host",
    ),
    # A person on the path
    "Read secrets that a machine fetches": (
        "endpoint/test_tls_machines.py::test_a_secret_is_served_and_recorded_by_tls",
    ),
    "Decrypt recorded connections": (
        "endpoint/test_tls_machines.py::"
        "test_the_socket_of_machines_offers_suites_of_firmware_after_those_with_forward_secrecy",
        "endpoint/test_tls_machines.py::test_without_firmware_ciphers_a_client_with_only_these_is_counted",
        "endpoint/test_tls_machines.py::test_the_socket_of_operators_never_offers_suites_of_firmware",
    ),
    "Read an operator's token": ("endpoint/test_tls.py::test_operators_use_tls_and_machines_use_http_as_before",),
    "Replace the newest commit": (
        "controller/test_commit_acceptance_signatures.py::"
        "test_a_commit_without_a_trusted_signature_is_rejected_and_the_accepted_one_stays",
    ),
    "Crack a BMC's password": (
        "bmc/test_ipmi.py::test_credentials_are_sent_by_ipmi_only_if_the_access_file_allows_it",
    ),
    "Passwords in the clear": (
        "test_http_client.py::test_finding_s16_tokens_are_sent_only_by_https_or_to_this_machine",
        "controller/test_forge.py::test_finding_s16_the_token_of_a_forge_is_sent_by_http_only_if_that_is_allowed",
        "git/test_remote.py::test_a_remote_that_cannot_work_is_a_usage_error",
        "bmc/test_access_file.py::test_t2_the_access_file_states_which_bmcs_get_the_credentials",
    ),
    "Unknown hosts": (
        "git/test_remote.py::test_a_host_must_have_a_known_key",
        "publish/targets/test_folder_rsync.py::test_an_error_names_the_target_and_the_cause_and_no_secret",
        "git/test_remote.py::test_a_certificate_must_be_trusted",
        "bmc/redfish/test_client.py::test_a_certificate_of_an_unknown_authority_or_for_another_name_is_rejected",
    ),
    # The holder of a backup
    "Compute tokens": (
        "controller/instance/test_state_directory_token_keys.py::test_t6_an_earlier_token_key_counts_for_a_day",
        "cli/commands/test_secret.py::test_a_new_key_decrypts_its_secrets_and_a_fleet_is_checked_with_it",
    ),
    "Forge a commit status": (
        "controller/test_forge.py::test_only_the_key_of_the_ledger_proves_the_change_in_a_status",
    ),
    "Secrets in the ledger": (
        "endpoint/test_boot_responses_secrets.py::"
        "test_a_machine_fetches_its_secret_while_it_is_installed_and_never_after",
        "bmc/test_access_file.py::test_a_backup_of_the_ledger_contains_no_bmc_password_and_no_token_key",
    ),
    "A restored copy": (
        "docs/test_operations.py::test_a_ledger_from_an_older_backup_is_detected_and_sets_nothing",
        "controller/records/test_ledger_trust.py::test_a_ledger_without_the_offer_of_a_served_boot_is_an_older_copy",
        "controller/records/test_ledger_trust.py::test_e9_the_forge_shows_that_a_machine_was_restored_from_a_backup",
    ),
}


def list_promises(page: str) -> list[str]:
    """Return the bold beginning of each list item and each row, or the whole line if it has none."""
    lines = page.partition(END)[0].splitlines()
    items = [
        line
        for number, line in enumerate(lines)
        if re.match(r"[-*|] ", line) and not lines[min(number + 1, len(lines) - 1)].startswith("|---")
    ]
    return [found[1] if (found := re.match(r"[-*|] \*\*(.+?)\.?\*\*", line)) else line for line in items]


def test_each_promise_on_the_page_is_shown_by_a_test() -> None:
    found = list_promises(PAGE)
    assert sorted(found) == sorted({*TESTED_BY, *ADVICE})
    assert not TESTED_BY.keys() & ADVICE
    assert [promise for promise, tests in TESTED_BY.items() if not tests] == []


def test_gitboot_itself_prevents_what_the_page_promises() -> None:
    """Advice is a row of a table, and never in the list of what gitboot prevents."""
    assert {each for each in ADVICE if re.search(rf"^- \*\*{re.escape(each)}", PAGE, re.MULTILINE)} == set()


def test_each_test_that_shows_a_promise_exists() -> None:
    named = {each for tests in TESTED_BY.values() for each in tests}
    texts = {name: (ROOT / "tests" / name).read_text() for name in {each.partition("::")[0] for each in named}}
    missing = [
        each
        for each in sorted(named)
        if not re.search(rf"^def {each.partition('::')[2]}\(", texts[each.partition("::")[0]], re.MULTILINE)
    ]
    assert missing == []


def test_a_promise_without_bold_text_is_found() -> None:
    page = (
        "## A stranger\n\n| a | b |\n|---|---|\n| **Do this.** x | y |\n| no name | y |\n\n- **That.** x\n- no name\n"
    )
    assert list_promises(page) == ["Do this", "| no name | y |", "That", "- no name"]
