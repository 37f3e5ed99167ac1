"""Case 105 at the command line: batch normalisation is refused where it is not exact, and exact where it is not refused."""

from __future__ import annotations

import json

import pytest

from recpipe.cli.main import main


@pytest.mark.parametrize("command", ["train", "verify"])
def test_commands_refuse_batch_norm_over_replicas_before_a_worker_starts(command, composed, capsys):
    assert main([command, "model=dcn_v2", "model.batch_norm=true", "launch.nproc=2"]) == 2
    assert "batch normalisation couples rows" in capsys.readouterr().err and not composed
    assert main([command, "model=dcn_v2", "model.batch_norm=true", "launch.nproc=2", "plan=auto"]) == 0
    assert main([command, "experiment=frappe_dcn_v2", "data=synthetic", "launch.nproc=1"]) == 0


def test_profile_refuses_batch_norm(capsys, tmp_path):
    assert main(["profile", "model=dcn_v2", "model.batch_norm=true", "launch.nproc=1", f"output={tmp_path}/p.json"]) == 2
    assert "recpipe profile measures steps that are cut" in capsys.readouterr().err


def test_the_batch_norm_model_that_is_saved_is_the_one_that_was_tested(tmp_path, caplog):
    """Case 105."""
    run = tmp_path / "run"
    small = ["data.num_train=600", "data.num_valid=40", "data.num_test=500", "batch_size=100", "launch.nproc=1"]
    assert main(["train", "model=dcn_v2", "model.batch_norm=true", f"run.dir={run}", "epochs=2", *small]) == 0
    tested = json.loads((run / "summary.json").read_text())
    with caplog.at_level("INFO", "recpipe"):
        assert main(["eval", f"checkpoint={run}", "launch.nproc=1"]) == 0
    scored = json.loads(next(one.getMessage() for one in caplog.records if one.getMessage().startswith('{"split"')))
    assert scored["auc"] == tested["auc"] and scored["logloss"] == tested["logloss"]
