"""The commands that are printed can be shown to anybody."""

import pytest

from retrieval_pretraining.run_folder import without_tokens


@pytest.mark.parametrize(
    "given",
    [["--token", "hf_x"], ["--hub_token", "hf_x"], ["--hub_token=hf_x"], ["--token=hf_x", "--hub_token", "y"]],
)
def test_tokens_are_left_out_of_a_command(given):
    before, after = ["run_pretrain.py", "--seed", "1"], ["--max_steps", "3"]
    assert without_tokens([*before, *given, *after]) == [*before, *after]
