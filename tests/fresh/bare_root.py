"""A bare Debian 12 in a folder, made by debootstrap and kept; each run has a copy of its own.

Commands run in namespaces of their own, so that no mount and no process outlives them, whatever
they are ended by. Where apt and pip find their servers is taken over from this machine.
"""
import fcntl
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ENTER = Path(__file__).with_name("enter.sh")
SUITE = "bookworm"
MIRROR = "http://deb.debian.org/debian"
USER = "newcomer"
HOME = f"/home/{USER}"
ALONE = ("--mount", "--pid", "--fork", "--kill-child")
PIP = ("INDEX_URL", "EXTRA_INDEX_URL", "TRUSTED_HOST", "CERT", "PROXY", "DEFAULT_TIMEOUT",
       "RETRIES")
PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy")
CERTIFICATES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT")
# The rights of a user of this machine: the root's user has no more. dpkg does not wait for the
# disk, as in Debian's image for Docker: the root is thrown away.
PREPARE = f"""
set -eu
if [ -d /carried/etc/apt/sources.list.d ]; then rm -f /etc/apt/sources.list; fi
cp -a /carried/etc /carried/usr /
echo "127.0.0.1 localhost $(uname -n)" >/etc/hosts
rm -rf /var/lib/apt/lists/*
echo force-unsafe-io >/etc/dpkg/dpkg.cfg.d/unsafe-io
useradd --create-home --shell /bin/bash {USER}
echo '{USER} ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/{USER}
chown -R {USER}:{USER} {HOME} /kept/pip /kept/ccache
"""
CLONE = f"{HOME}/rollring"
# Objects of ccache are those of sources at the same place: files that Meson compiles in groups are
# named by their whole path.
PUT_CLONE = """
mkdir -p "${place%/*}"
at=
for folder in $(dirname "$place" | tr / ' '); do at="$at/$folder"; chmod a+x "$at"; done
cp -a /carried/clone "$place"
chown -R USER:USER "$place"
[ "$place" = CLONE ] || ln -s "$place" CLONE
""".replace("USER", USER).replace("CLONE", CLONE)


class Unavailable(Exception):
    """The parts that this machine lacks for a root."""


def namespaces():
    """The command that makes them: as root, or as a user with a range of users of his own."""
    users = () if os.getuid() == 0 else ("--user", "--map-root-user", "--map-auto")
    command = ["unshare", *users, *ALONE]
    done = subprocess.run([*command, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], check=False,
                          capture_output=True, text=True)
    if done.returncode != 0:
        raise Unavailable(f"neither root nor a user namespace: {done.stderr.strip()}")
    return command


def mirror():
    """Debian's archive where apt of this machine finds it."""
    asked = ["apt-get", "indextargets", "--format", "$(CODENAME) $(COMPONENT) $(REPO_URI)",
             "Created-By: Packages"]
    done = subprocess.run(asked, check=False, capture_output=True, text=True)
    for line in done.stdout.splitlines():
        if line.startswith(f"{SUITE} main "):
            return line.split()[2]
    return MIRROR


def environment():
    """Of commands in the root."""
    names = [*(f"PIP_{name}" for name in PIP), *CERTIFICATES[:3], *PROXIES,
             *(name.upper() for name in PROXIES)]
    taken = {name: os.environ[name] for name in names if name in os.environ}
    return {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin", "HOME": HOME,
            "USER": USER, "LOGNAME": USER, "SHELL": "/bin/bash", "LANG": "C.UTF-8",
            "PIP_CACHE_DIR": "/kept/pip", "CCACHE_DIR": "/kept/ccache", **taken}


def carry(folder):
    """Into `folder`, by their places in the root: name servers, apt's sources and keys where this
    is the same Debian, certificates, and what pip is told."""
    def take(*paths):
        for path in map(Path, paths):
            if path.exists():
                made = folder / path.relative_to("/")
                made.parent.mkdir(parents=True, exist_ok=True)
                if path.is_dir():
                    shutil.copytree(path, made, dirs_exist_ok=True, symlinks=True)
                else:
                    shutil.copy(path, made)

    for name in ("etc", "usr"):
        (folder / name).mkdir()
    take("/etc/resolv.conf", "/etc/pip.conf", "/usr/local/share/ca-certificates",
         "/etc/ssl/certs/ca-certificates.crt",
         *(os.environ[name] for name in CERTIFICATES if name in os.environ))
    users = (os.environ.get("PIP_CONFIG_FILE"), Path.home() / ".config/pip/pip.conf",
             Path.home() / ".pip/pip.conf")
    for path in users:
        if path and Path(path).is_file():
            shutil.copy(path, folder / "etc/pip.conf")
    if f"VERSION_CODENAME={SUITE}\n" in Path("/etc/os-release").read_text(encoding="utf-8"):
        take("/etc/apt/sources.list", "/etc/apt/sources.list.d", "/etc/apt/trusted.gpg.d",
             "/etc/apt/keyrings", "/etc/apt/auth.conf", "/etc/apt/auth.conf.d")
    carry_apt_settings(folder)


def carry_apt_settings(folder):
    """The settings by which apt reaches its servers here; sudo drops the proxies of the
    environment."""
    dump = subprocess.run(["apt-config", "dump"], check=False, capture_output=True, text=True)
    kept = [line for line in dump.stdout.splitlines()
            if line.startswith(("Acquire::http", "Acquire::Check-", "Acquire::Retries"))]
    for kind in ("http", "https"):
        proxy = os.environ.get(f"{kind}_proxy") or os.environ.get(f"{kind}_proxy".upper())
        if proxy:
            kept.append(f'Acquire::{kind}::Proxy "{proxy}";')
    made = folder / "etc/apt/apt.conf.d/90carried"
    made.parent.mkdir(parents=True, exist_ok=True)
    made.write_text("\n".join(kept) + "\n", encoding="utf-8")


class BareRoot:
    """`with BareRoot(folder, tree, log) as root`: a copy of the bare system with a clone of HEAD
    of `tree` in the home of a user who may use sudo. `objects`: a cache of ccache; by default it
    has none."""

    def __init__(self, folder, tree, log, objects=None):
        self.folder, self.tree, self.log, self.objects = folder, tree, log, objects
        self.unshare = namespaces()
        if shutil.which("debootstrap") is None:
            raise Unavailable("no debootstrap")

    def __enter__(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        self.lock = open(self.folder / "lock", "w", encoding="utf-8")  # noqa: SIM115
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"fresh: another run uses {self.folder}")
        self.remove_copy()
        try:
            self.bootstrap()
            self.copy()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.remove_copy()
        self.lock.close()

    def remove_copy(self):
        for name in ("root", "upper", "work", "carried"):
            self.as_root("rm", "-rf", self.folder / name)

    def as_root(self, *command):
        """On this machine, with the users that the root has."""
        with open(self.log, "a", encoding="utf-8") as log:
            subprocess.run([*self.unshare, *command], check=True, stdin=subprocess.DEVNULL,
                           stdout=log, stderr=subprocess.STDOUT)

    def bootstrap(self):
        """Kept under a name that only a whole one has."""
        base, begun = self.folder / "base", self.folder / "base.begun"
        if base.exists():
            return
        self.as_root("rm", "-rf", begun)
        # A user's own namespace may not make device nodes, as a container of lxc may not.
        lean = () if os.getuid() == 0 else ("env", "container=lxc")
        self.as_root(*lean, "debootstrap", "--variant=minbase", "--include=sudo", SUITE, begun,
                     mirror())
        begun.rename(base)

    def copy(self):
        self.as_root("rm", "-rf", self.folder / "kept/ccache")
        if self.objects is not None and self.objects.is_dir():
            (self.folder / "kept").mkdir(exist_ok=True)
            shutil.copytree(self.objects, self.folder / "kept/ccache")
        for name in ("root", "upper", "work", "carried", "kept/archives/partial", "kept/pip",
                     "kept/ccache"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        if not self.overlays():
            for name in ("root", "upper", "work"):
                self.as_root("rm", "-rf", self.folder / name)
            self.as_root("cp", "-a", self.folder / "base", self.folder / "root")
        carry(self.folder / "carried")
        subprocess.run(["git", "-c", "safe.directory=*", "clone", "--quiet", "--no-hardlinks",
                        self.tree, self.folder / "carried/clone"], check=True)
        place = CLONE if self.objects is None else self.tree.resolve()
        self.run(f"{PREPARE}place={shlex.quote(str(place))}\n{PUT_CLONE}", self.log, user="root")

    def start_again_with(self, folder):
        """In a new copy, whose user has this folder of the clone, as far as there is one, alone."""
        self.run(f"rm -rf /kept/{folder}; cp -a {CLONE}/{folder} /kept/ || true", self.log,
                 user="root")
        self.remove_copy()
        self.copy()
        self.run(f"rm -rf {CLONE}; mkdir {CLONE}; "
                 f"mv /kept/{folder} {CLONE}/ || true; chown -R {USER}:{USER} {HOME}",
                 self.log, user="root")

    def overlays(self):
        layers = (("lowerdir", "base"), ("upperdir", "upper"), ("workdir", "work"))
        options = ",".join(f"{name}={self.folder}/{layer}" for name, layer in layers) + \
            ("" if os.getuid() == 0 else ",userxattr")
        try:
            self.as_root("mount", "-t", "overlay", "overlay", "-o", options, self.folder / "root")
        except subprocess.CalledProcessError:
            return False
        return True

    def start(self, script, log, user=USER):
        """Bash runs the script where a newcomer stands: in the clone."""
        place = "/" if user == "root" else CLONE
        command = ["bash", "-c", f"cd {place} && exec bash -euo pipefail -c \"$1\"", "bash", script]
        return subprocess.Popen([*self.unshare, ENTER, self.folder, user, *command],
                                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                                env=environment(), start_new_session=True)

    def run(self, script, log_path, user=USER):
        with open(log_path, "a", encoding="utf-8") as log:
            process = self.start(script, log, user)
            try:
                status = process.wait()
            finally:
                process.kill()
                process.wait()
        if status != 0:
            raise subprocess.CalledProcessError(status, script)
