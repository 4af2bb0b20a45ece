"""What a hostile app tries, one function each: one that returns has got out, one that raises not.

A script: ``victim`` holds what there is to steal and starts ``attacker``, locked in as
``murmur_guard/guarded.py`` is, which tries everything, each in a fork of its own. The last line
that is printed says by name what became of it. ``lock=false``: nothing is locked, to see which
attempts are any good on this machine.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import inspect
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_ssize_t
X86 = os.uname().machine == "x86_64"
GENERIC = {"perf": (298, 241), "bpf": (321, 280), "uffd": (323, 282), "keyctl": (250, 219)}
GENERIC |= {"handle": (303, 264), "memfd": (319, 279), "readv": (310, 270), "ptrace": (101, 117)}
GENERIC |= {"setsid": (112, 157), "shmget": (29, 194), "mq": (240, 180), "prlimit": (302, 261)}
GENERIC |= {"clone": (56, 220), "inotify": (254, 27), "swapoff": (168, 225), "kcmp": (312, 272)}
SECRET = "the owner's secret"


def call(number, *arguments):
    """A system call by name or number; OSError where it fails."""
    if isinstance(number, str):
        number = GENERIC[number][0 if X86 else 1]
    done = libc.syscall(ctypes.c_long(number), *map(_word, arguments))
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return done


def _word(value):
    return ctypes.c_long(value) if isinstance(value, int) else value


def must(holds):
    if not holds:
        raise OSError("it did nothing")


# The attempts of the specification. ``at``: what the victim says of itself. ----------------------


def tcp(at):
    socket.create_connection(("127.0.0.1", at["tcp"]), 2)


def udp(at):
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", at["udp"]))


def netlink(at):
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)


def vsock(at):
    socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)


def unix(at):
    socket.socket(socket.AF_UNIX).connect(at["unix"])


def shadow(at):
    Path("/etc/shadow").read_text()


def ledger(at):
    Path(at["ledger"]).read_text()


def temporary_files(at):
    with open(f"/tmp/murmur-{at['pid']}", "r+") as file:
        file.write("x")


def shared_memory(at):
    Path(at["shm"]).read_text()


def environment(at):
    must(SECRET.encode() in Path(f"/proc/{at['pid']}/environ").read_bytes())


def memory(at):
    with open(f"/proc/{at['pid']}/mem", "rb") as file:
        file.seek(at["address"])
        must(file.read(4) == SECRET.encode()[:4])


def descriptors(at):
    must(os.listdir(f"/proc/{at['pid']}/fd"))


def inherited(at):
    must(os.pread(at["descriptor"], 4, 0) == SECRET.encode()[:4])


def kill(at):
    os.kill(at["pid"], signal.SIGUSR1)


def ptrace(at):
    call("ptrace", 0x4206, at["pid"], 0, 0)  # PTRACE_SEIZE


def io_uring(at):
    call(425, 1, ctypes.create_string_buffer(256))


def curl(at):
    command = ["curl", "-s", "-m", "1", f"telnet://127.0.0.1:{at['tcp']}"]
    done = subprocess.run(command, input=b"", timeout=5)
    must(done.returncode in (0, 28))  # 28: there was a connection, and no answer


def shell(at):
    subprocess.run(["/bin/sh", "-c", f"cat {at['ledger']}"], check=True)


def unshare(at):
    must(libc.unshare(0x10000000) == 0)


def list_elsewhere(at):
    os.listdir(at["home"])


def write_elsewhere(at):
    Path(at["home"], "left").write_text(SECRET)


def write_data(at):
    Path(at["data"], "left").write_text(SECRET)


def setuid_program(at):
    done = subprocess.run(["su", "-s", "/bin/true", "nobody"], capture_output=True, timeout=5)
    must(done.returncode == 0)


# Twenty and more besides ------------------------------------------------------------------------


def abstract_unix(at):
    socket.socket(socket.AF_UNIX).connect(f"\0{at['abstract']}")


def socketpair_to_elsewhere(at):
    one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.sendto(b"x", at["datagram"])


def raw_packets(at):
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW)


def icmp(at):
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)


def ipv6(at):
    socket.socket(socket.AF_INET6, socket.SOCK_STREAM)


def crypto_of_the_kernel(at):
    socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)


def foreign_memory(at):
    class Part(ctypes.Structure):
        _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))

    into = ctypes.create_string_buffer(8)
    mine = Part(ctypes.addressof(into), 4)
    theirs = Part(at["address"], 4)
    call("readv", at["pid"], ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0)


def foreign_descriptor(at):
    call(438, os.pidfd_open(at["pid"]), at["descriptor"], 0)


def compare_processes(at):
    call("kcmp", at["pid"], os.getpid(), 0, 1, 1)


def signal_by_descriptor(at):
    signal.pidfd_send_signal(os.pidfd_open(at["pid"]), signal.SIGUSR1)


def limits_of_the_parent(at):
    resource.prlimit(at["pid"], resource.RLIMIT_CORE, (0, 0))


def priority_of_the_parent(at):
    os.setpriority(os.PRIO_PROCESS, at["pid"], 19)


def processors_of_the_parent(at):
    os.sched_setaffinity(at["pid"], {0})


def make_readable(at):
    os.chmod(at["ledger"], 0o644)
    must(os.stat(at["ledger"]).st_mode & 0o777 == 0o644)


def set_time(at):
    os.utime(at["ledger"], (1, 1))
    must(os.stat(at["ledger"]).st_mtime == 1)


def set_attribute(at):
    os.setxattr(at["ledger"], "user.mark", b"x")


def mark_a_file(at):
    """A flag of the file itself, which takes no more than reading it and lies there ever after."""
    with open(f"{at['data']}/table.csv") as file:
        fcntl.ioctl(file, 0x40086602, struct.pack("=q", 0x40))  # FS_IOC_SETFLAGS, no dump
        flags = fcntl.ioctl(file, 0x80086601, bytes(8))
    must(struct.unpack("=q", flags)[0] & 0x40)


def number_a_file(at):
    with open(f"{at['data']}/table.csv") as file:
        fcntl.ioctl(file, 0x40087602, struct.pack("=q", 4_711))  # FS_IOC_SETVERSION, 32 bits
        number = fcntl.ioctl(file, 0x80087601, bytes(8))
    must(struct.unpack("=ii", number)[0] == 4_711)


def attributes_of_a_file(at):
    with open(f"{at['data']}/table.csv") as file:
        found = fcntl.ioctl(file, 0x801C581F, bytes(28))
        fcntl.ioctl(file, 0x401C5820, found)  # FS_IOC_FSSETXATTR


def give_away(at):
    os.chown(at["ledger"], os.geteuid(), os.getegid())


def cut_off(at):
    os.truncate(at["spare"], 0)


def cut_off_data(at):
    os.close(os.open(f"{at['data']}/table.csv", os.O_RDONLY | os.O_TRUNC))
    must(os.stat(f"{at['data']}/table.csv").st_size == 0)


def rename(at):
    os.rename(at["spare"], f"{at['spare']}.gone")
    os.rename(f"{at['spare']}.gone", at["spare"])


def hard_link(at):
    os.link(at["ledger"], f"{at['scratch']}/link")
    Path(at["scratch"], "link").read_text()


def symbolic_link(at):
    Path(at["scratch"], "symbolic").symlink_to(at["ledger"])
    Path(at["scratch"], "symbolic").read_text()


def unlink(at):
    os.unlink(at["spare"])


def watch(at):
    call("inotify", libc.inotify_init(), at["ledger"].encode(), 2)


def by_handle(at):
    handle = ctypes.create_string_buffer(struct.pack("=Ii", 128, 0), 256)
    call("handle", -100, at["ledger"].encode(), handle, ctypes.byref(ctypes.c_int()), 0)


def pipe_elsewhere(at):
    os.mkfifo(f"{at['home']}/fifo")


def mount(at):
    place = Path(at["scratch"], "mount")
    place.mkdir(exist_ok=True)
    must(libc.mount(b"none", str(place).encode(), b"tmpfs", 0, None) == 0)
    libc.umount2(str(place).encode(), 2)


def new_root(at):
    os.chroot("/")


def clone_a_namespace(at):
    if not call("clone", 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0):
        os._exit(0)


def clone3_a_namespace(at):
    arguments = ctypes.create_string_buffer(struct.pack("=QQQQQ", 0x10000000, 0, 0, 0, 17), 64)
    if not call(435, arguments, 64):
        os._exit(0)


def load_bpf(at):
    call("bpf", 0, ctypes.create_string_buffer(struct.pack("=IIII", 2, 4, 4, 1), 72), 72)


def performance(at):
    size = 112
    about = ctypes.create_string_buffer(struct.pack("=IIQ", 1, size, 0), size)
    call("perf", about, 0, -1, -1, 0)


def page_faults(at):
    call("uffd", 1)


def keys(at):
    call("keyctl", 0, -3, 1)


def hidden_memory(at):
    call("memfd", b"x", 0)


def shared_segment(at):
    call("shmget", 0x4D55, 4096, 0o1600)


def segment_of_others(at):
    must(libc.shmat(at["segment"], None, 0) != -1)


def list_of_segments(at):
    must(libc.shmctl(at["segment"], 2, ctypes.create_string_buffer(256)) == 0)  # IPC_STAT


def queue_of_others(at):
    must(libc.msgsnd(at["queue"], struct.pack("=qq", 1, 1), 8, 0o4000) == 0)


def message_of_others(at):
    must(libc.msgrcv(at["queue"], ctypes.create_string_buffer(16), 8, 0, 0o14000) >= 0)  # a copy


def semaphore_of_others(at):
    must(
        libc.semop(at["semaphore"], ctypes.create_string_buffer(struct.pack("=Hhh", 0, 1, 0)), 1)
        == 0
    )


def signal_by_a_pipe(at):
    reading, writing = os.pipe()
    fcntl.fcntl(reading, fcntl.F_SETOWN, at["pid"])
    fcntl.fcntl(reading, 10, signal.SIGUSR1)  # F_SETSIG
    fcntl.fcntl(reading, fcntl.F_SETFL, os.O_ASYNC)
    os.write(writing, b"x")


def message_queue(at):
    call("mq", b"murmur", 0o102, 0o600, None)
    libc.mq_unlink(b"/murmur")


def own_session(at):
    call("setsid")


def swap(at):
    must(_refused_otherwise(lambda: call("swapoff", b"/nowhere")))


def host_name(at):
    socket.sethostname(socket.gethostname())


def kernel_memory(at):
    os.open("/dev/mem", os.O_RDONLY)


def terminal(at):
    os.open("/dev/ptmx", os.O_RDWR)


def kernel_settings(at):
    os.close(os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY))


def devices(at):
    must(set(os.listdir("/dev")) - {"null", "zero", "full", "random", "urandom", "shm"})


def other_processes(at):
    Path(f"/proc/{at['pid']}/cmdline").read_bytes()


def python_packages(at):
    path = Path(sys.prefix, "lib", f"left-{at['pid']}")
    path.write_text("")
    path.unlink()


def old_calls(at):
    must(X86)
    _run_code(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")  # getpid of 32 bits, by int 0x80


def unknown_call(at):
    must(_refused_otherwise(lambda: call(463, -100, b"/", 0, b"x", None, 0)))


def _refused_otherwise(attempt):
    """Whether an attempt on nothing reaches the kernel, which then finds that there is nothing."""
    try:
        attempt()
    except OSError as error:
        return error.errno not in (errno.EPERM, errno.ENOSYS)
    return True


def _run_code(code):
    import mmap

    place = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    place.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(place))
    must(ctypes.CFUNCTYPE(ctypes.c_int)(address)() > 0)


ATTEMPTS = {
    name: found
    for name, found in list(globals().items())
    if inspect.isfunction(found) and list(inspect.signature(found).parameters) == ["at"]
}


def tried(attempt, at):
    """ "out", or how it was stopped; in a fork, for some end their process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        try:
            attempt(at)
            said = b"out"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}".encode()
        os.write(writing, said)
        os._exit(0)
    os.close(writing)
    _, status = os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    return said or f"ended by signal {os.WTERMSIG(status)}"


def attacker(at):
    print("\n" + json.dumps({name: tried(attempt, at) for name, attempt in ATTEMPTS.items()}))


def _printed(at, command, environment):
    """What a command prints that is locked in, or not."""
    if not at["lock"]:
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, start_new_session=True
        )
        return process.communicate(timeout=100)[0]
    sys.path.insert(0, at["code"])  # what is on the path may be read
    import sandbox

    own = sandbox.Sandbox((at["data"],), **at["sandbox"])
    with open(os.devnull, "rb") as nothing:
        locked = sandbox.start(own, command, environment, nothing)
    try:
        printed, said = locked.process.communicate(timeout=100)
        sys.stderr.buffer.write(said)
    finally:
        locked.end()
    return printed


def victim(at):
    home = Path(at["home"])
    data = home.parent / "data"
    data.mkdir(exist_ok=True)
    (data / "table.csv").write_text("1,2\n")
    at["data"] = str(data)
    at["scratch"] = "/tmp" if at["lock"] else str(home / "scratch")
    (home / "scratch").mkdir()
    for name in ("ledger", "spare"):
        at[name] = str(home / name)
        Path(at[name]).write_text(SECRET)
        os.chmod(at[name], 0o600)
    at["pid"] = os.getpid()
    shm = Path(f"/dev/shm/murmur-{at['pid']}")
    temporary = Path(f"/tmp/murmur-{at['pid']}")
    for shared in (shm, temporary):
        shared.write_text(SECRET)
    at["shm"] = str(shm)
    kept = ctypes.create_string_buffer(SECRET.encode())
    at["address"] = ctypes.addressof(kept)
    at["descriptor"] = os.open(at["ledger"], os.O_RDONLY)
    at["unix"], at["datagram"] = str(home / "u"), str(home / "d")
    at["abstract"] = f"murmur-{at['pid']}"
    sockets = [socket.socket(), socket.socket(type=socket.SOCK_DGRAM)]
    sockets += [socket.socket(socket.AF_UNIX) for _ in range(2)]
    sockets.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    places = [("127.0.0.1", 0), ("127.0.0.1", 0), at["unix"], f"\0{at['abstract']}", at["datagram"]]
    for each, place in zip(sockets, places, strict=True):
        each.bind(place)
        if each.type == socket.SOCK_STREAM:
            each.listen()
    at["tcp"], at["udp"] = (each.getsockname()[1] for each in sockets[:2])
    at["segment"] = libc.shmget(0, 4096, 0o1600)
    at["queue"] = libc.msgget(0, 0o1600)
    at["semaphore"] = libc.semget(0, 1, 0o1600)
    libc.msgsnd(at["queue"], struct.pack("=qq", 1, 1), 8, 0)
    hits = []
    signal.signal(signal.SIGUSR1, lambda *_: hits.append(1))
    environment = {"PATH": "/usr/bin:/bin", "HOME": at["scratch"]}
    command = [sys.executable, "-I", "-B", __file__, "attacker", json.dumps(at)]
    found = json.loads(_printed(at, command, environment).splitlines()[-1])
    time.sleep(0.05)
    for shared in (shm, temporary):
        shared.unlink()
    for remove, which in ((libc.shmctl, "segment"), (libc.msgctl, "queue")):
        remove(at[which], 0, None)
    libc.semctl(at["semaphore"], 0, 0)
    if hits:
        found["kill"] = "out"
    if at["lock"]:
        if Path(at["ledger"]).read_text() != SECRET:
            found["ledger"] = "out"
        for name in ("write_data", "cut_off_data"):  # in a layer of its own, perhaps
            same = os.listdir(data) == ["table.csv"] and (data / "table.csv").stat().st_size == 4
            found[name] = "nothing is changed" if same else "out"
    print(json.dumps(found))


if __name__ == "__main__":
    {"victim": victim, "attacker": attacker}[sys.argv[1]](json.loads(sys.argv[2]))
