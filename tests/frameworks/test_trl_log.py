"""rr.log with a trainer of transformers: its dashboards get the numbers, and its own log is left
alone.
"""
import numpy as np
import transformers

import rollring as rr


class Dashboard(transformers.TrainerCallback):
    def __init__(self):
        self.seen = []

    def on_log(self, args, state, control, logs=None, model=None, **_):
        self.seen.append((state.global_step, logs))


def test_the_trainers_dashboards_get_the_numbers(ring, tmp_path, model, capsys):
    dashboard = Dashboard()
    trainer = transformers.Trainer(
        model=transformers.AutoModelForCausalLM.from_pretrained(model),
        args=transformers.TrainingArguments(str(tmp_path), report_to=[], use_cpu=True),
        callbacks=[dashboard])
    with rr.Producer(ring) as producer:
        for member in range(4):
            producer.push("q", token_ids=np.arange(member + 3, dtype=np.int32), group_size=4,
                          repetition_id=member, reward=float(member))
    with rr.Stash(ring, batch_groups=1) as stash:
        rr.log(stash, trainer)
        trainer.state.global_step = 7
        with stash.next(timeout=10):
            pass
    ((step, logs),) = dashboard.seen
    assert step == 7 and logs["rollring/reward/mean"] == 1.5 and logs["rollring/sequences"] == 4
    assert trainer.state.log_history == []
    assert "rollring" not in capsys.readouterr().out
