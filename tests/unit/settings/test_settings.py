"""Settings: every source, every refusal, and no secret in any of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from signalhub.cli.hub.settings import page
from signalhub.settings.load import Loaded, leaves, load, survey
from signalhub.settings.model import AuthSettings, Key, Secret, Settings
from signalhub.wire.errors import SettingsError

PAGE = Path(__file__).parents[3] / "docs" / "operate" / "settings.md"
SECRET = "correct horse battery staple"


def from_toml(folder: Path, text: str, **environ: str) -> Loaded:
    path = folder / "hub.toml"
    path.write_text(text)
    return load(str(path), environ, {})


def from_environment(**environ: str) -> Settings:
    return load(None, environ, {}).settings


def refusal(environ: dict[str, str], overrides: dict[str, object] | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        load(None, environ, overrides or {})
    return str(caught.value)


def file_refusal(folder: Path, text: str) -> str:
    with pytest.raises(SettingsError) as caught:
        from_toml(folder, text)
    return str(caught.value)


def test_without_any_source_everything_is_the_default() -> None:
    # Those of the client are not ours.
    environ = {"PATH": "/bin", "SIGNALHUB_URL": "ws://elsewhere/ws", "SIGNALHUB_TOKEN": "x.y.z"}

    loaded = load(None, environ, {})

    assert loaded.settings == Settings()
    assert set(loaded.sources.values()) == {"default"}


def test_a_file_sets_nested_values_and_is_named_as_their_source(tmp_path: Path) -> None:
    loaded = from_toml(tmp_path, "port = 9000\n[registry]\nlimit = 7\n[outbound]\nstalled_s = 3\n")

    assert loaded.settings.port == 9000
    assert loaded.settings.registry.limit == 7
    assert loaded.settings.outbound.stalled_s == 3.0
    assert loaded.sources["registry.limit"] == str(tmp_path / "hub.toml")
    assert loaded.sources["registry.lease_s"] == "default"


def test_a_variable_beats_the_file_and_an_option_beats_both(tmp_path: Path) -> None:
    path = tmp_path / "hub.toml"
    path.write_text("port = 1\nmessage_burst = 2\nfanout_batch = 3\n")
    environ = {"SIGNALHUB_PORT": "10", "SIGNALHUB_MESSAGE_BURST": "20"}

    loaded = load(str(path), environ, {"port": 100, "host": None})

    assert (loaded.settings.port, loaded.sources["port"]) == (100, "--port")
    assert loaded.settings.message_burst == 20
    assert loaded.sources["message_burst"] == "SIGNALHUB_MESSAGE_BURST"
    assert loaded.settings.fanout_batch == 3
    assert loaded.sources["host"] == "default"


def test_every_leaf_has_its_own_variable_and_says_what_it_is_for() -> None:
    variables = [leaf.variable for leaf in leaves().values()]

    assert len(set(variables)) == len(variables)
    assert "SIGNALHUB_REGISTRY_LIMIT" in variables
    assert all(leaf.about for leaf in leaves().values())


@pytest.mark.parametrize(
    ("text", "is_on"),
    [("true", True), ("ON", True), ("1", True), ("false", False), ("Off", False), ("0", False)],
)
def test_a_variable_switches_on_and_off(tmp_path: Path, text: str, is_on: bool) -> None:
    toml = f'[auth]\nenabled = {"false" if is_on else "true"}\nsecret = "{SECRET}"\n'

    assert from_toml(tmp_path, toml, SIGNALHUB_AUTH_ENABLED=text).settings.auth.enabled is is_on


def test_a_list_is_written_with_commas_or_as_json() -> None:
    origins = ("https://a.example", "https://b.example")

    for text in (", ".join(origins), msgspec.json.encode(origins).decode()):
        assert from_environment(SIGNALHUB_ORIGINS=text).origins == origins
    assert from_environment(SIGNALHUB_ORIGINS="").origins == ()


def test_keys_are_json_in_a_variable_and_tables_in_a_file(tmp_path: Path) -> None:
    keys = {"main": {"algorithm": "HS256", "secret": SECRET}}
    variable = from_environment(SIGNALHUB_AUTH_KEYS=msgspec.json.encode(keys).decode())
    file = from_toml(tmp_path, f'[auth.keys.main]\nsecret = "{SECRET}"\n').settings

    assert variable.auth.keys == file.auth.keys == {"main": Key(secret=SECRET)}


@pytest.mark.parametrize(
    ("toml", "named"),
    [
        ("prot = 1", "unknown key prot: did you mean port?"),
        ("[registry]\nlease = 1", "unknown key registry.lease: did you mean registry.lease_s?"),
        ("[regstry]\nlimit = 1", "unknown key regstry: did you mean registry?"),
        ("registry = 5", "registry must be a table: write its keys under [registry]"),
        ("[auth.keys]\nmain = 5", "auth.keys.main must be a table"),
        ('[auth.keys.main]\nsecert = "x"', "unknown key auth.keys.main.secert: did you mean"),
        ("xylophone = 1", "unknown key xylophone"),
        ('port = "high"', 'port is "high", expected a whole number from 0 to 65535'),
        ("port = 70000", "port is 70000, expected a whole number from 0 to 65535"),
        ("port = 80.5", "port is 80.5, expected a whole number"),
        ("[log]\nsegment_bytes = 1", "expected a whole number from 65536 to 1073741824"),
        ("port = true", "port is true, expected a whole number"),
        ("host = 1", "host is 1, expected a string"),
        ("hello_s = 0", "hello_s is 0, expected a number above 0"),
        ("drain_s = inf", "drain_s is inf, expected a number above 0"),
        ('origins = "https://a.example"', 'is "https://a.example", expected a list of strings'),
        ("[auth]\nenabled = 1", "auth.enabled is 1, expected true or false"),
        ("[dedup]\nwindow_s = 10", "dedup.window_s is 10, expected a number from 60 to 300"),
        ('log_level = "loud"', 'log_level is "loud", expected one of debug, error, info, warning'),
        ('[auth.keys.a]\nalgorithm = "none"', 'auth.keys.a.algorithm is "none", expected one of'),
        ("[auth]\nkeys = 5", "auth.keys is •••, expected a table of keys"),
        ("port = = 1", "invalid TOML in"),
        ("[auth.keys.a]\n", "auth.keys.a is an HS256 key without a secret"),
        ('[auth.keys.a]\nsecret = "short"\n', "auth.keys.a.secret is too short"),
        (
            '[auth.keys.a]\nalgorithm = "EdDSA"\npublic_key = "nonsense"\n',
            "auth.keys.a.public_key is not an Ed25519",
        ),
    ],
)
def test_an_unknown_key_or_wrong_value_is_refused_with_what_was_expected(
    tmp_path: Path, toml: str, named: str
) -> None:
    text = file_refusal(tmp_path, toml)

    assert named in text
    assert "hub.toml" in text


def test_an_unknown_or_wrong_variable_or_option_is_named(tmp_path: Path) -> None:
    unknown = refusal({"SIGNALHUB_REGISTRY_LIMT": "1", "SIGNALHUB_QWXZ": "1"})
    wrong = refusal({"SIGNALHUB_REGISTRY_LIMIT": "many", "SIGNALHUB_AUTH_ENABLED": "yes"})
    several = file_refusal(tmp_path, 'port = "a"\nhots = "b"\n[registry]\nlimit = 0\n')

    assert "SIGNALHUB_REGISTRY_LIMT: did you mean SIGNALHUB_REGISTRY_LIMIT?" in unknown
    assert "SIGNALHUB_QWXZ: unset it" in unknown
    assert 'SIGNALHUB_REGISTRY_LIMIT: registry.limit is "many", expected a whole number' in wrong
    assert 'SIGNALHUB_AUTH_ENABLED: auth.enabled is "yes", expected true or false' in wrong
    assert "--port: port is -1, expected a whole number" in refusal({}, {"port": -1})
    assert len(several.splitlines()) == 3, "all mistakes are reported together"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "hub.toml").write_bytes(b'host = "\xff"')

    for path, words in (
        (tmp_path / "missing.toml", r"missing\.toml"),
        (tmp_path, "cannot read"),
        (tmp_path / "hub.toml", r"invalid TOML in .*hub\.toml"),
    ):
        with pytest.raises(SettingsError, match=words):
            load(str(path), {}, {})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "hub.example", "192.168.1.4", "127.1"])
def test_a_host_beyond_loopback_needs_authentication(host: str) -> None:
    text = refusal({"SIGNALHUB_HOST": host})

    assert text.startswith("SIGNALHUB_HOST: host ")
    assert "auth.enabled" in text
    assert "127.0.0.1" in text
    assert refusal({}, {"host": host}).startswith("--host: host ")
    auth = {"SIGNALHUB_AUTH_ENABLED": "on", "SIGNALHUB_AUTH_SECRET": SECRET}
    assert from_environment(SIGNALHUB_HOST=host, **auth).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "localhost", "LOCALHOST"])
def test_loopback_needs_no_authentication(host: str) -> None:
    assert from_environment(SIGNALHUB_HOST=host).host == host


def test_a_rule_that_is_broken_from_two_places_names_both(tmp_path: Path) -> None:
    path = tmp_path / "hub.toml"
    path.write_text("[outbound]\nresume_messages = 50\n")

    with pytest.raises(SettingsError) as caught:
        load(str(path), {"SIGNALHUB_OUTBOUND_PAUSE_MESSAGES": "40"}, {})

    assert str(path) in str(caught.value)
    assert "SIGNALHUB_OUTBOUND_PAUSE_MESSAGES" in str(caught.value)


def test_a_survey_keeps_what_was_given_and_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "hub.toml"
    path.write_text(f'port = "high"\n[auth]\nsecret = "{SECRET}"\n[auth.keys.a]\nsecret = 5\n')

    found = survey(str(path), {}, {})

    assert found.values["port"] == "high"
    assert len(found.mistakes) == 2
    assert SECRET not in repr(found)
    with pytest.raises(SettingsError, match="port is"):
        load(str(path), {}, {})


def test_authentication_needs_a_key_that_cannot_be_guessed() -> None:
    assert "set auth.secret" in refusal({"SIGNALHUB_AUTH_ENABLED": "true"})
    assert "auth.secret is too short" in refusal({"SIGNALHUB_AUTH_SECRET": "x" * 15})
    assert from_environment(SIGNALHUB_AUTH_SECRET="é" * 8).auth.secret == "é" * 8


def test_an_eddsa_key_is_a_public_key_in_pem(tmp_path: Path) -> None:
    public = Ed25519PrivateKey.generate().public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    toml = f'[auth.keys.a]\nalgorithm = "EdDSA"\npublic_key = """\n{pem}"""\n'

    assert from_toml(tmp_path, toml).settings.auth.keys["a"].public_key == pem


@pytest.mark.parametrize(
    ("environ", "first", "second"),
    [
        ({"OUTBOUND_RESUME_MESSAGES": "1000"}, "resume_messages", "pause_messages"),
        ({"OUTBOUND_PAUSE_MESSAGES": "10001"}, "pause_messages", "messages_max"),
        ({"REGISTRY_WARN_ABOVE": "0.96"}, "warn_above", "refuse_above"),
        ({"REGISTRY_LEASE_S": "3601"}, "lease_s", "lease_max_s"),
        ({"MESSAGE_BYTES_MAX": "9000000"}, "message_bytes_max", "frame_bytes_max"),
    ],
)
def test_values_in_the_wrong_order_are_refused(
    environ: dict[str, str], first: str, second: str
) -> None:
    text = refusal({f"SIGNALHUB_{name}": value for name, value in environ.items()})

    assert first in text
    assert second in text
    assert "lower the first or raise the second" in text


def test_bounds_may_be_equal() -> None:
    settings = from_environment(
        SIGNALHUB_OUTBOUND_PAUSE_MESSAGES="10000",
        SIGNALHUB_REGISTRY_WARN_ABOVE="0.95",
        SIGNALHUB_REGISTRY_LEASE_S="3600",
        SIGNALHUB_MESSAGE_BYTES_MAX=str(8 * 2**20),
    )

    assert settings.outbound.pause_messages == settings.outbound.messages_max


def test_secrets_show_themselves_nowhere_and_survive_being_copied(tmp_path: Path) -> None:
    toml = f'[auth]\nsecret = "{SECRET}"\n[auth.keys.a]\nsecret = "{SECRET}"\n'
    loaded = from_toml(tmp_path, toml)
    auth = loaded.settings.auth
    copy: Any = msgspec.structs.replace(AuthSettings(secret=SECRET), issuer="other")

    assert SECRET not in repr(loaded)
    assert SECRET not in f"{auth.secret} {auth.keys['a'].secret:>20} {auth}"
    assert SECRET not in "%s" % auth.secret  # noqa: UP031
    assert auth.secret.encode() == SECRET.encode()
    assert copy.secret == SECRET == Secret(Secret(SECRET))


@pytest.mark.parametrize(
    "environ",
    [
        {"SIGNALHUB_AUTH_KEYS": f'{{"a": {{"secret": "{SECRET}", "algorithm": "x"}}}}'},
        {"SIGNALHUB_AUTH_KEYS": f'{{"a": {{"secret": ["{SECRET}"]}}}}'},
        {"SIGNALHUB_AUTH_KEYS": f'{{"a": "{SECRET}"}}'},
        {"SIGNALHUB_AUTH_KEYS": SECRET},
        {"SIGNALHUB_AUTH_SECRT": SECRET},
    ],
)
def test_no_refusal_repeats_a_secret(environ: dict[str, str]) -> None:
    assert SECRET not in refusal(environ)


def test_the_reference_page_is_up_to_date_and_its_example_works(tmp_path: Path) -> None:
    _, _, rest = page().partition("```toml\n")
    example, _, _ = rest.partition("```")

    settings = from_toml(tmp_path, example).settings

    assert (settings.registry.limit, settings.auth.enabled) == (20_000, True)
    command = "run: signalhub settings reference > docs/operate/settings.md"
    assert PAGE.read_text() == page(), command
