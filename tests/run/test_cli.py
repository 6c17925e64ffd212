"""What the command line refuses: in one line, with exit code 2, leaving nothing behind."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from triform.run import main

TRAIN = Path(__file__).parents[2] / "train.py"

FEW = ("data.n_train=60", "data.n_validation=9", "data.n_test=7")  # for what is known only when data is prepared
STACKS = ("encoder", "decoder")
REFUSED = [
    # keys and groups
    (["typo=3"], ["typo: no such key"]),
    (["+typo=3"], ["typo: no such key"]),
    (["++trainer.max_stepz=3"], ["trainer.max_stepz: no such key", "did you mean 'max_steps'?"]),
    (["+model.nheads=3"], ["model.nheads: EncoderDecoder takes no such key", "did you mean 'n_heads'?"]),
    (["+optimizer.betaz=3"], ["optimizer.betaz: adamw takes no such key", "did you mean 'betas'?"]),
    (["optimizer.lrr=2"], ["optimizer.lrr: no such key", "did you mean 'optimizer.lr'?"]),
    (["d_model=64"], ["did you mean 'model.d_model'?"]),
    (["batchsize=3"], ["did you mean 'data.batch_size'?"]),
    (["model.d_ff=${a.b}"], ["model.d_ff: ${a.b} names no key; set model.d_ff=VALUE"]),
    (["model.d_ff=${model.d_modl}"], ["model.d_ff: ${model.d_modl} names no key (did you mean 'model.d_model'?)"]),
    (["model.d_ff=${model.d_ff}"], ["model.d_ff: ${...} leads back to this key"]),
    (["model=${a.b}"], ["model=${a.b}: ", "name an option instead"]),
    (["callbacks={a:5}"], ["callbacks.a: no such callback", "+callbacks.a._target_=CLASS"]),
    (["model={d_modle:3}"], ["model.d_modle: no such key", "did you mean 'model.d_model'?"]),
    (["modell=decoder"], ["modell: no such key", "did you mean 'model'?"]),
    (["model=decodr"], ["model=decodr: no such option", "did you mean 'decoder'?"]),
    (["model/attention=sliding"], ["no such option", "did you mean 'sliding_window'?", "multi_head"]),
    (["model/attentionn=multi_head"], ["did you mean 'model/attention'?"]),
    (["tokenizer.vocab_size=300"], ["no such key with the tokenizer chosen", "tokenizer=bpe"]),
    (["data.train_files=a.txt"], ["no such key with the data chosen", "data=text"]),
    (["+seed=1"], ["the key is there already", "without the plus"]),
    (["model._target_=triform.models.decoder.Decodr"], ["has no Decodr", "did you mean 'Decoder'?"]),
    (["experiment=null"], ["experiment=null: name an option", "none"]),
    (["trainer=[1]"], ["trainer=[1]: name an option", "ddp"]),
    (["+match=null"], ["+match=null: name an option", "tokens"]),
    (["trust={a:b}"], ["trust={a:b}: a list where {key: value} belongs, or the other way round"]),
    (
        ["optimizer.betas=[0,0]", "model.feed_forward=[]"],
        ["optimizer.betas=[0,0] or model.feed_forward=[]: a list where"],
    ),
    # the line itself
    (["model.d_model"], ["write key=value"]),
    (["name=a=b"], ["cannot be read as key=value"]),
    (["data=dates,stdlib"], ["add -m to run each"]),
    (["--multirunn"], ["--multirunn", "--help"]),
    (["--cfg", "jobb"], ["invalid choice: 'jobb'"]),
    (["hydra.run.dir=elsewhere"], ["set paths.outputs"]),
    (["--help", "sheduler"], ["no such group", "did you mean 'scheduler'?"]),
    # values
    (["seed=abc"], ["seed=abc is not a whole number"]),
    (["trainer.max_steps=0"], ["trainer.max_steps=0", "above 0"]),
    (
        ["trainer.max_steps=null", "trainer.max_epochs=null"],
        ["none of max_steps, max_epochs, max_tokens, max_hours is set"],
    ),
    (["trainer.precision=bf17"], ["trainer.precision=bf17 is not known", "bf16-mixed"]),
    (["model.n_heads=two"], ["model.n_heads=two is not a whole number"]),
    (["model.n_heads=5"], ["d_model=128 is not a multiple of n_heads=5", "model.d_model"]),
    (["optimizer.lr=fast"], ["optimizer.lr=fast is not a number"]),
    (["model.d_model=-4"], ["d_model=-4 is less than 1"]),
    (["optimizer.betas=0.9"], ["optimizer.betas=0.9 is not a list, each a number"]),
    ([*FEW, "optimizer.betas=[0.9]"], ["optimizer.betas=[0.9] are not two numbers"]),
    ([*FEW, "optimizer.weight_decay=-1"], ["weight_decay=-1 is below 0; set optimizer.weight_decay to 0 or more"]),
    (["optimizer.lr=inf"], ["optimizer.lr=inf is not finite"]),
    (["optimizer.lr=nan"], ["optimizer.lr=nan is not finite"]),
    (["optimizer.betas=[0.9,nan]"], ["optimizer.betas=[0.9, nan] is not finite"]),
    (["model.attention.scale=nan"], ["model.attention.scale=nan is not finite"]),
    (["model.n_layers='3'"], ["model.n_layers='3' is not a whole number"]),
    (["trainer.max_steps='3'"], ["trainer.max_steps='3' is not a whole number above 0"]),
    (["trainer.compile='true'"], ["trainer.compile='true' is not known"]),
    (["trust=3"], ["trust=3 is no list of packages", "trust=[PACKAGE]"]),
    (["trust=[3]"], ["trust=[3] is no list of packages"]),
    (["~model"], ["model is missing"]),
    (["~model._target_"], ["model._target_ is missing", "choose model=..."]),
    (["paths=null"], ["paths=null is no group of keys"]),
    (["model.norm=null"], ["norm=null is not a part with a _target_; set model."]),
    (["model.attention.qk_norm=5"], ["attention.qk_norm=5 is not a part with a _target_ or null; set model."]),
    (["+callbacks.mine=5"], ["callbacks.mine=5 is no callback; write callbacks.mine._target_=CLASS"]),
    ([*FEW, "scheduler.warmup_steps=-1"], ["warmup_steps=-1"]),
    (["data.batch_size=null"], ["set exactly one"]),
    (["traceback=maybe"], ["traceback=maybe is not known; set one of true, false"]),
    (["name=../x"], ["name=../x cannot name a folder"]),
    (["name='a b'"], ["name=a b cannot name a folder"]),
    # relations and machine
    (["data.seq_len=257"], ["data.seq_len=257 is beyond model.max_seq_len=256"]),
    (
        ["model.max_seq_len=128", "model.decoder.max_seq_len=32"],
        ["data.seq_len=64 is beyond model.decoder.max_seq_len=32"],
    ),
    (["model=encoder"], ["Seq2Seq does not train model=encoder", "model=encoder_decoder"]),
    (
        ["model=vit_tiny", "data=labelled", "data.train_files=x.tsv", "data.seq_len=8"],
        ["the model reads images, not data of kind labelled"],
    ),
    (["model=decoder", "+model/embedding=patches"], ["model.embedding: Decoder takes no such key"]),
    (
        ["data=digits", "model.embedding.image_size=4", "model.max_seq_len=5"],
        ["images of 1 x 8 x 8", "do not fit the 1 x 4 x 4 of the model", "set model.embedding.channels=1 and"],
    ),
    (
        ["data=digits", "model.max_seq_len=20"],
        ["data.seq_len=20: the model makes 17 vectors of an image; set data.seq_len and model.max_seq_len to 17"],
    ),
    (["data=digits", "model=encoder"], ["the model reads tokens, not data of kind images"]),
    (["data=images", "data.train_files=x.tsv"], ["data.train_files=", "is no folder"]),
    (["task=causal_lm"], ["CausalLM learns from text, not from data of kind pairs", "task=seq2seq"]),
    (["trainer.devices=1000"], ["trainer.devices=1000 is more than the", "CPU cores"]),
    (["trainer.accelerator=gpu"], ["GPUs of this machine"]),
    (["trainer.accelerator=cuda"], ["GPUs of this machine"]),
    (["trainer.accelerator=mps"], ["trainer.accelerator=mps is not known"]),
    (["trainer.num_nodes=2"], ["torchrun or srun"]),
    (["paths.outputs=/dev/null/x"], ["paths.outputs=/dev/null/x cannot be written to"]),
    (
        ["model.n_layers=3", "model.encoder.n_layers=1", "model.decoder.n_layers=1"],
        ["model.n_layers=3 reaches no stack", "model.encoder.n_layers and model.decoder.n_layers are set"],
    ),
    (["model/norm=rms", *(f"model/norm@model.{s}.norm=layer" for s in STACKS)], ["model/norm=rms reaches no stack"]),
    (["model=decoder", "model.encoder.n_layers=2"], ["model.encoder.n_layers: no such key"]),
    (["model._target_=os.system"], ["outside what a config may name"]),
    # parts
    ([*FEW, "model.n_kv_heads=3"], ["Attention: n_heads=4 is not a multiple of n_kv_heads=3", "such as 1 or 2"]),
    (
        [*FEW, "model/attention=sliding_window", "model.attention.window=0"],
        ["Attention: window=0 is less than 1 token; set model.attention.window to at least 1"],
    ),
    (
        [*FEW, "model/position=rotary", "model.head_dim=5"],
        ["Rotary: head_dim=5 is odd", "set model.head_dim to an even number"],
    ),
    (
        [*FEW, "model/feed_forward=mixture", "model.feed_forward.n_experts=1"],
        ["MixtureOfExperts: n_experts=1 are fewer than top_k=2; set model.feed_forward.top_k to at most 1"],
    ),
    (
        [*FEW, "+model/position@model.decoder.cross_attention.position=rotary"],
        ["EncoderDecoder: model.decoder.cross_attention.position is set", "no positions in common; leave it out"],
    ),
    (
        ["model/attention@model.decoder.cross_attention=multi_head", "+model.decoder.cross_attention.position=rotary"],
        ["model.decoder.cross_attention.position: Attention takes no such key"],
    ),
    (
        [*FEW, "model/attention@model.decoder.cross_attention=sliding_window"],
        ["EncoderDecoder: a window of 32 tokens has no meaning between source and target", "such as multi_head"],
    ),
    (
        [*FEW, "model/attention@model.decoder.cross_attention=alternate"],
        ["EncoderDecoder: alternate layers have no meaning between source and target", "such as multi_head"],
    ),
    # files
    (["data=text"], ["data.train_files is not set"]),
    (["data=text", "data.train_files=3"], ["data.train_files=3 is not a text or a list, each a text or null"]),
    (["data=text", "data.train_files=true"], ["data.train_files=true is not a text"]),
    (["data=text", "data.train_files=shrt.txt"], ["shrt.txt does not exist", "short.txt"]),
    (["data=text", "data.train_files=empty.txt"], ["empty.txt is empty"]),
    (["data=text", "data.train_files=short.txt"], ["fewer than the 129 of one row of data.seq_len=128"]),
    (["data=labelled", "data.train_files=x.tsv", "data.label_column=lable"], ["lable is no column", "label"]),
    # sweeps
    (["-m", *FEW, "seed=0,1", "model.n_heads=4,5"], ["n_heads=5", "(in the run with seed=0 model.n_heads=5)"]),
    (["-m", *FEW, "model=decoder,decodr"], ["model=decodr: no such option", "did you mean 'decoder'?"]),
    (["-m", "seed=0,1", "hydra/launcher=slrm"], ["hydra/launcher=slrm: no such option"]),
    (["-m", *FEW, "seed=0,1", "hydra/launcher=basic"], ["hydra/launcher=basic: no launcher of triform's"]),
    (["-m", *FEW, "seed=range(0,0)"], ["seed=range(0,0): no value"]),
    (["-m", *FEW, "seed=0,1", "hydra.sweeper.metric=los"], ["metric=los is not logged", "did you mean"]),
    (["-m", *FEW, "seed=0,1", "hydra.sweeper.name=a/b"], ["hydra.sweeper.name=a/b cannot name a folder"]),
    (["-m", *FEW, "seed=interval(0,1)"], ["hydra/sweeper=random"]),
]


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a few files of the user's."""
    (tmp_path / "short.txt").write_text("hello")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "x.tsv").write_text("text\tlabel\n" + "a b\tx\nc d\ty\n" * 20)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("arguments", "fragments"), REFUSED, ids=[" ".join(case[0]) for case in REFUSED])
def test_bad_input_is_one_line(
    arguments: list[str], fragments: list[str], empty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(arguments)
    printed = capsys.readouterr()
    assert code == 2
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1, printed.err
    for fragment in fragments:
        assert fragment in printed.err
    assert not list(empty.rglob("config.yaml")), "a run folder was left"
    assert {path.name for path in empty.iterdir()} <= {"short.txt", "empty.txt", "x.tsv", "outputs"}


class Leaving:
    """Leaves the program as if all were well."""

    def __init__(self) -> None:
        raise SystemExit  # sys.exit() is sys.exit(0) once W&B has put its own in its place in this process


def test_a_run_that_is_left_has_not_finished(empty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FEW, "trust=[tests]", f"+callbacks.leave={{_target_: {__name__}.Leaving}}"]) == 1
    assert "RuntimeError: the run was left by sys.exit()" in capsys.readouterr().err


def test_traceback_is_shown_on_request(empty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["seed=abc", "traceback=true"]) == 2
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_cfg_prints_the_config_and_stops(empty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data=text", "--cfg", "job", "seed=3"]) == 0
    printed = capsys.readouterr().out
    assert "seed: 3" in printed
    assert "triform.models.decoder.Decoder" in printed, "the recipe of the data set"
    assert sorted(path.name for path in empty.iterdir()) == ["empty.txt", "short.txt", "x.tsv"]


def test_help_is_quick_and_imports_nothing_slow(tmp_path: Path) -> None:
    code = (
        "import sys; from triform.commands.train import main; code = main(['--help']);"
        "assert not {'torch', 'hydra', 'lightning', 'rich'} & set(sys.modules), 'slow imports'; sys.exit(code)"
    )
    seconds = []
    for _ in range(3):  # the quickest: other processes may be busy
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 1.0
    for word in (
        "python train.py data=text data.train_files=",
        "encoder_decoder*",
        "model.d_model=128",
        "trainer.max_hours=null",
        "experiment=stdlib",
        "triform resume RUN",
    ):
        assert word in done.stdout


def test_train_py_passes_the_exit_code_on(tmp_path: Path) -> None:
    environment = {**os.environ, "HYDRA_FULL_ERROR": "0"}
    done = subprocess.run(
        [sys.executable, TRAIN, "seed=abc"], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert not list(tmp_path.iterdir())


def test_who_uses_a_model_does_not_import_what_trains_it() -> None:
    """Lightning takes longer to import than all else that `triform translate` needs, and Dynamo as long as torch."""
    code = (
        "import sys, triform.run.load, triform.run.sketch, triform.tasks.seq2seq; "
        "from triform.models.blank import blank; from torch import nn\nwith blank(): nn.Linear(3, 4)\n"
        "print(sorted({'lightning', 'torchmetrics', 'datasets', 'torch._dynamo'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
