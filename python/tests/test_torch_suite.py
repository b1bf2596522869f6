"""A part of torch's own tests of `torch.distributed`, on this package under the name "gloo"; `cargo xtask suites` runs all of
them, and docs/compatibility.md says what passes."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

SUITES = Path(__file__).resolve().parents[1] / "suites"

TESTS = """
test_DistributedDataParallelCPU test_accumulate_gradients_no_sync_allreduce_with_then_hook test_all_gather
test_all_gather_coalesced_simple test_all_gather_object_subgroup test_all_reduce_coalesced_full_group_max
test_all_reduce_sum_async test_all_reduce_sum_complex test_barrier_timeout_full_group test_batch_isend_irecv_gloo_tags
test_broadcast_full_group test_ddp_create_graph test_destroy_group test_gather_object test_get_future
test_grads_same_across_ranks_with_no_sync test_irecv test_isend_torch_profiler test_monitored_barrier_gloo
test_monitored_barrier_gloo_rank_0_timeout test_new_subgroups_with_group_param test_reduce_full_group_sum
test_scatter_object_list test_send_recv_any_source_torch_profiler test_send_recv_with_tag_autograd_profiler
test_sparse_all_reduce_sum test_static_graph_api_cpu
""".split()


def test_a_part_of_torch_s_own_suite_passes(tmp_path):
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14):
        pytest.skip("before torch 2.14 the name gloo cannot be taken over")
    sys.path.insert(0, str(SUITES))
    try:
        import torch_suite
    finally:
        sys.path.remove(str(SUITES))
    results = torch_suite.run(3, tmp_path, TESTS, ours=True)
    failed = {test: why for test, (outcome, why) in results.items() if outcome == "failed"}
    assert not failed, failed
    assert sum(outcome == "passed" for outcome, _ in results.values()) >= 25
