import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import entry_points, packages_distributions
from pathlib import Path, PurePosixPath

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PACKAGES = ("tenure", "webhook", "ledger", "scheduler", "agent", "certs")
INITS = sorted(
    path.relative_to(ROOT).as_posix()
    for package in PACKAGES
    for path in (ROOT / package).rglob("__init__.py")
)
LOCKS = ("core", "build", "dev")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that the checkout builds, by the locked backend and without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    subprocess.run([*build, "--directory", folder], cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def shipped(wheel: Path) -> list[PurePosixPath]:
    """The files in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return [PurePosixPath(name) for name in archive.namelist()]


def pins(lock: str) -> dict[str, str]:
    """Map each package of a lock file to its exact version."""
    text = (ROOT / "requirements" / f"{lock}.txt").read_text(encoding="utf-8")
    return dict(re.findall(r"^([a-z0-9.-]+)==(\S+)", text, re.MULTILINE))


def test_make_live_installs_what_it_runs_on_and_says_so(tmp_path: Path) -> None:
    """No tool of development; before each step a line, on a terminal also what pip says."""
    command = ["make", "--dry-run", f"VENV={tmp_path / 'venv'}"]
    done = subprocess.run([*command, "live"], cwd=ROOT, check=True, capture_output=True, text=True)
    found = re.findall(r"(echo|pip).*?requirements/([a-z]+)\.txt", done.stdout)
    steps = ["core", "service", "go"]
    assert [(word, lock) for word, lock in found if lock in steps] == [
        (word, lock) for lock in steps for word in ("echo", "pip")
    ]
    assert {lock for _, lock in found} <= {*steps, "build"}
    for terminal in ("", "/dev/pts/1"):
        shown = subprocess.check_output([*command, f"MAKE_TERMOUT={terminal}", "live"], cwd=ROOT)
        assert (b"--quiet" in shown) is (terminal == "")


def test_what_make_live_imports_is_in_what_it_installs() -> None:
    """The extra `service`, which `tenure serve scheduler` needs, is locked there too."""
    say = "import sys, tests.live; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", say], cwd=ROOT, capture_output=True, check=True)
    owners = packages_distributions()
    imported = {
        canonicalize_name(owner)
        for name in done.stdout.decode().split()
        for owner in owners.get(name, ())
    }
    assert {"pyyaml", "cryptography"} <= imported
    assert imported - {"tenure", "setuptools"} <= pins("service").keys()
    service = {
        canonicalize_name(Requirement(each).name)
        for each in PROJECT["optional-dependencies"]["service"]
    }
    assert service <= pins("service").keys()


def test_each_top_level_package_is_ours_alone(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    No other installed distribution ships a package under one of our generic names.

    The wheel is unpacked beside what is installed, because an editable install names no packages.
    """
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    owners = packages_distributions()

    assert {name: set(owners[name]) for name in PACKAGES} == {name: {"tenure"} for name in PACKAGES}


def test_the_wheel_installs_our_packages_and_nothing_beside_them(
    shipped: list[PurePosixPath],
) -> None:
    """A top-level `migrations` or `tests` would collide with somebody else's in site-packages."""
    tops = {path.parts[0] for path in shipped}

    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)


def test_the_wheel_carries_every_migration_inside_the_ledger(shipped: list[PurePosixPath]) -> None:
    """An installed Tenure can create and upgrade a ledger without the checkout."""
    carried = {str(path) for path in shipped if path.is_relative_to("ledger/_migrations")}
    sources = (ROOT / "migrations").rglob("*.py")
    expected = {f"ledger/_migrations/{path.relative_to(ROOT / 'migrations')}" for path in sources}

    assert expected
    assert expected <= carried


def test_an_installed_wheel_prints_manifests(wheel: Path, tmp_path: Path) -> None:
    """The files of `deploy/` are inside, and it prints the same with them as the checkout."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    carried = {path.name: path.read_bytes() for path in (tmp_path / "tenure/_deploy").iterdir()}
    assert carried == {path.name: path.read_bytes() for path in (ROOT / "deploy").iterdir()}

    program = "import sys, tenure.cli as cli; print(cli.__file__, file=sys.stderr); cli.main()"
    command = [sys.executable, "-c", program, "manifests", "scheduler", "--kube-version", "v1.36.3"]
    printed = [
        subprocess.run(
            command, env={"PYTHONPATH": str(place)}, cwd=tmp_path, check=True, capture_output=True
        )
        for place in (tmp_path, ROOT)
    ]

    assert printed[0].stderr.decode().strip() == str(tmp_path / "tenure" / "cli.py")
    assert printed[0].stdout == printed[1].stdout


def test_the_command_is_tenure() -> None:
    """The installed distribution offers one command, under its own name."""
    scripts = [e for e in entry_points(group="console_scripts") if e.name == "tenure"]

    assert {script.value for script in scripts} == {"tenure.cli:main"}


def test_no_index_accepts_the_distribution() -> None:
    """An upload by mistake is refused: `scheduler` and `agent` belong in no index."""
    assert "Private :: Do Not Upload" in PROJECT["classifiers"]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_top_level_package_has_a_charter(package: str) -> None:
    """A package that ships has an `__init__.py`: none is a namespace that others could join."""
    assert f"{package}/__init__.py" in INITS


@pytest.mark.parametrize("init", INITS)
def test_a_package_is_described_and_imports_nothing(init: str) -> None:
    """Importing a module loads none of its siblings: the words come without a database client."""
    module = ast.parse((ROOT / init).read_text(encoding="utf-8"))

    assert ast.get_docstring(module)
    assert [ast.unparse(statement) for statement in module.body[1:]] == []


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_has_a_hash_for_every_pin(lock: str) -> None:
    """What is installed is what was locked, byte for byte."""
    text = (ROOT / "requirements" / f"{lock}.txt").read_text(encoding="utf-8")
    blocks = re.split(r"^(?=\w)", text, flags=re.MULTILINE)[1:]

    assert len(blocks) == len(pins(lock))
    assert [block for block in blocks if "--hash=sha256:" not in block] == []


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_host_and_no_path(lock: str) -> None:
    """Where packages come from is the reader's setting, not ours."""
    text = (ROOT / "requirements" / f"{lock}.txt").read_text(encoding="utf-8")

    assert re.findall(r"\S*://\S*|(?<!\S)--(?!hash)\S+|(?<!\S)/\S+", text) == []


def test_the_locks_agree_on_every_version() -> None:
    """Tests run with the versions that users run with."""
    dev = pins("dev")
    elsewhere = pins("build") | pins("core")
    differing = {n: (v, dev[n]) for n, v in elsewhere.items() if dev.get(n, v) != v}

    assert differing == {}


@pytest.mark.parametrize(
    ("lock", "declared"),
    [
        pytest.param("core", PROJECT["dependencies"], id="what Tenure runs on"),
        pytest.param("dev", PROJECT["optional-dependencies"]["dev"], id="what its tests run on"),
    ],
)
def test_a_lock_is_not_behind_what_is_declared(lock: str, declared: list[str]) -> None:
    """A dependency that was added or raised in pyproject.toml fails here until `make lock`."""
    locked = pins(lock)
    behind = [
        requirement
        for requirement in map(Requirement, declared)
        if locked.get(canonicalize_name(requirement.name), "0") not in requirement.specifier
    ]

    assert behind == []


def test_the_core_lock_holds_no_client_of_a_cluster_and_no_tool() -> None:
    """`make demo` needs neither a Kubernetes client, gRPC, NVML nor a test tool."""
    assert not {"kubernetes-asyncio", "aiohttp", "grpcio", "nvidia-ml-py", "pytest"} & set(
        pins("core")
    )
