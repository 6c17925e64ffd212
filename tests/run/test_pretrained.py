"""Models as folders: written, read, refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

import triform
from tests.interop.parity import VOCAB_SIZE, close, ids, same_weights
from tests.models.composed import build
from triform.data.tokenizers import Byte, Tokenizer
from triform.run.pretrained import OWN_TYPE, from_pretrained, save_pretrained
from triform.tasks.source_target import SourceTarget

# No class of `transformers` has ALiBi and SwiGLU in an encoder-decoder, nor what its decoder has of its own.
UNPUBLISHED = (
    "model/position=alibi",
    "model/feed_forward=swiglu",
    "model/placement=deepnorm",
    "model/attention@model.decoder.attention=grouped_query",
    "model.encoder.n_layers=3",
    "model.decoder.d_ff=33",
)


def unpublished() -> Any:
    return build("encoder_decoder", *UNPUBLISHED)


@pytest.mark.parametrize("read", [triform.from_pretrained, triform.load])
@torch.no_grad()
def test_a_model_that_nobody_published(read: Callable[[Path], Any], tmp_path: Path) -> None:
    model, tokenizer = unpublished(), Byte().train(iter(()))
    assert save_pretrained(model, tmp_path / "export", tokenizer) == OWN_TYPE
    again, read_tokenizer = read(tmp_path / "export")
    same_weights(again, model)
    close(again(ids(2, 9), ids(2, 5)).logits, model(ids(2, 9), ids(2, 5)).logits)
    assert not again.training
    assert read_tokenizer.encode("a b") == tokenizer.encode("a b")
    assert save_pretrained(again, tmp_path / "again") == OWN_TYPE
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("export", "again"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    configs = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("export", "again")]
    assert configs[0] == configs[1]


def test_an_export_may_have_no_tokenizer(tmp_path: Path) -> None:
    save_pretrained(build("t5_tiny"), tmp_path)
    model, tokenizer = triform.load(tmp_path)
    assert (type(model).__name__, tokenizer) == ("EncoderDecoder", None)


@pytest.mark.parametrize(
    ("overrides", "written_as"),
    [
        (("bart_tiny",), "BartForConditionalGeneration"),
        (("bart_tiny", "model.head_dim=6", "model.n_kv_heads=4"), "BartForConditionalGeneration"),
        (
            ("bart_tiny", "model.encoder.n_layers=3", "model/feed_forward@model.decoder.feed_forward=gelu"),
            "BartForConditionalGeneration",
        ),
        (("bart_tiny", "model.init.std=0.1", "model/layer_drop=constant"), "BartForConditionalGeneration"),
        (("bart_tiny", "model.norm.eps=1e-6"), OWN_TYPE),
        (("bart_tiny", "model.decoder.max_seq_len=9"), OWN_TYPE),
        (("bart_tiny", "model.attention.scale=1.0"), OWN_TYPE),
        (("bart_tiny", "model/init=mup", "model.init.base_width=12"), OWN_TYPE),
        (("bart_tiny", "model/attention@model.decoder.cross_attention=softcap"), OWN_TYPE),
        (("t5_tiny", "model.decoder.n_layers=1"), "T5ForConditionalGeneration"),
        (("t5_tiny", "model.decoder.d_ff=9"), OWN_TYPE),
        (("t5_tiny", "model.feed_forward.bias=true"), OWN_TYPE),
        (("marian_tiny",), "MarianMTModel"),
        (("transformer_tiny",), OWN_TYPE),  # sines in turns, and no biases in attention
        (("transformer_tiny", "model/position=sinusoidal_concatenated", "model.attention.bias=true"), OWN_TYPE),  # eps
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_what_computes_the_same_is_written_as_published(
    overrides: tuple[str, ...], written_as: str, tmp_path: Path
) -> None:
    model = build(*overrides)
    assert save_pretrained(model, tmp_path) == written_as
    again, _ = from_pretrained(tmp_path)
    close(again(ids(2, 9), ids(2, 5)).logits.detach(), model(ids(2, 9), ids(2, 5)).logits.detach())


@torch.no_grad()
def test_numbers_keep_their_type_where_it_is_asked_for(tmp_path: Path) -> None:
    model = unpublished().bfloat16()
    save_pretrained(model, tmp_path)
    types = {dtype: next(from_pretrained(tmp_path, dtype=dtype)[0].parameters()).dtype for dtype in (None, torch.half)}
    assert types == {None: torch.bfloat16, torch.half: torch.half}
    assert next(from_pretrained(tmp_path)[0].parameters()).dtype == torch.float32


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    folder = tmp_path / "export"
    folder.mkdir()
    save_pretrained(unpublished(), folder)  # an empty one may be filled
    before = (folder / "model.safetensors").read_bytes()
    with pytest.raises(ValueError, match=r"export exists; name a new folder, nothing is overwritten"):
        save_pretrained(unpublished(), folder)
    with pytest.raises(ValueError, match=r"config.json exists; name a new folder"):
        save_pretrained(unpublished(), folder / "config.json")
    assert (folder / "model.safetensors").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["export"]


def test_a_part_without_a_name_leaves_nothing(tmp_path: Path) -> None:
    model = unpublished()
    model.arguments["norm"] = lambda width: nn.LayerNorm(width)
    with pytest.raises(ValueError, match=r"model.norm=.* is no part that a config can name"):
        save_pretrained(model, tmp_path / "export")
    assert not list(tmp_path.iterdir())


def changed(*path: str, to: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        node = config
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = to
        (folder / "config.json").write_text(json.dumps(config))

    return change


def weights(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def rewrite(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return rewrite


def cut(folder: Path) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-100])


TABLE = "embedding.table.weight"
WRONG = {
    "foreign class": (
        changed("model", "norm", "_target_", to="os.system"),
        r"os.system",
    ),
    "foreign class inside": (
        changed("model", "feed_forward", "activation", "_target_", to="subprocess.Popen"),
        r"subprocess.Popen",
    ),
    "unknown class of ours": (
        changed("model", "norm", "_target_", to="triform.layers.norm.rms.Norm"),
        r"triform.layers.norm.rms.Norm",
    ),
    "a model that is none": (changed("model", to="a"), r"config.json describes no model; put the file back"),
    "a key too many": (changed("model", "depth", to=3), r"depth"),
    "another type": (changed("model", "d_model", to="wide"), r"d_model"),
    "another size": (changed("model", "d_ff", to=41), r"model.safetensors has .* of shape"),
    "cut off": (cut, r"model.safetensors is no whole file of safetensors .*; fetch it again"),
    "missing": (lambda folder: (folder / "model.safetensors").unlink(), r"has no model.safetensors nor"),
    "without a tensor": (weights(lambda tensors: tensors.pop(TABLE)), rf"has no {TABLE}, which the model of this"),
    "a tensor too many": (
        weights(lambda tensors: tensors.update(more=torch.ones(1))),
        r"has more, which the model of this config has not",
    ),
    "not finite": (
        weights(lambda tensors: tensors[TABLE][0].fill_(float("nan"))),
        rf"has numbers in {TABLE} that are not finite; train or export it anew",
    ),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "export"
    save_pretrained(unpublished(), folder)
    return folder


@pytest.mark.parametrize("name", WRONG)
def test_a_damaged_export_is_refused(name: str, whole: Path, tmp_path: Path) -> None:
    for file in whole.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    damage, message = WRONG[name]
    damage(tmp_path)
    with pytest.raises(ValueError, match=message) as refused:
        triform.load(tmp_path)
    assert "\n" not in str(refused.value)
    with pytest.raises(ValueError, match=message):
        triform.from_pretrained(tmp_path)


def test_a_class_of_a_package_that_is_trusted(whole: Path, tmp_path: Path) -> None:
    for file in whole.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    changed("model", "feed_forward", "activation", "_target_", to="tests.run.own.Cube")(tmp_path)
    with pytest.raises(ValueError, match=r"tests.run.own.Cube"):
        triform.load(tmp_path)
    model, _ = triform.load(tmp_path, trust=["tests.run.own"])
    assert type(model.encoder.layers[0].feed_forward.activation).__name__ == "Cube"


def test_neither_a_run_nor_an_export(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is no run's folder: it has no config.yaml"):
        triform.load(tmp_path)


class TestWhereADecoderStarts:
    """T5 starts with its padding, BART with its end mark, whatever begins a text of their tokenizers."""

    @staticmethod
    def foreign(folder: Path, roles: dict[str, str]) -> None:
        words = [*roles.values(), *map(str, range(3, VOCAB_SIZE))]
        backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, "3"))
        backend.add_special_tokens(list(roles.values()))
        backend.save(str(folder / "tokenizer.json"))
        named = {f"{role}_token": token for role, token in roles.items()}
        (folder / "tokenizer_config.json").write_text(json.dumps(named))

    @pytest.mark.parametrize(
        ("name", "roles", "start_id", "labels", "inputs"),
        [
            ("t5_tiny", {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"}, 0, [11, 12, 1], [0, 11, 12]),
            ("bart_tiny", {"bos": "<s>", "pad": "<pad>", "eos": "</s>"}, 2, [0, 11, 12, 2], [2, 0, 11, 12]),
        ],
    )
    def test_it_goes_in_and_out(
        self, name: str, roles: dict[str, str], start_id: int, labels: list[int], inputs: list[int], tmp_path: Path
    ) -> None:
        folder = tmp_path / "theirs"
        save_pretrained(build(name), folder)
        self.foreign(folder, roles)
        changed("decoder_start_token_id", to=start_id)(folder)
        model, tokenizer = from_pretrained(folder)
        assert tokenizer is not None
        assert tokenizer.start_id == start_id
        batch = SourceTarget("encoder_decoder", tokenizer, both_ways=False).batch([[9, 8]], [labels])
        assert batch["decoder_input_ids"].tolist() == [inputs]
        kind = save_pretrained(model, tmp_path / "ours", tokenizer)
        read = getattr(transformers, kind).from_pretrained(tmp_path / "ours")
        assert read.prepare_decoder_input_ids_from_labels(torch.tensor([labels])).tolist() == [inputs]
        assert read.config.eos_token_id == tokenizer.eos_id == list(roles).index("eos")
        assert read.config.pad_token_id == tokenizer.pad_id == list(roles).index("pad")
        assert Tokenizer.load(tmp_path / "ours").start_id == start_id
