"""What a hostile app asks of the kernel that bubblewrap does not stop by itself, a function each.

One that returns has got out, one that raises has not; some end their process. A script, locked in:
``hostile_kernel.py DATA`` prints by name what became of each, tried in a fork of its own.
"""

import ctypes
import errno
import fcntl
import inspect
import json
import mmap
import os
import resource
import signal
import struct
import sys
import termios
import time
from pathlib import Path

libc = ctypes.CDLL(None, use_errno=True)
X86 = os.uname().machine == "x86_64"
DATA = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
TABLE = DATA / "table.csv"


def call(numbers, *arguments):
    """A call by its numbers on x86-64 and arm64, with whole words; OSError where it fails."""
    number = numbers if isinstance(numbers, int) else numbers[0 if X86 else 1]
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    done = libc.syscall(ctypes.c_long(number), *words)
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return done


def known(numbers, *arguments):
    """Whether the kernel looks at a call, be it to say that it makes no sense."""
    try:
        call(numbers, *arguments)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EPERM):
            raise


def write(path, text="0"):
    with open(path, "w") as file:
        file.write(text)


# Mounts and files ----------------------------------------------------------------


def remount_for_writing():
    known((165, 40), None, b"/", None, 0x20 | 0x1000, None)


def mount_by_the_new_calls():
    known((430, 430), b"tmpfs", 0)


def copy_a_mount():
    known((428, 428), -100, b"/", 1)


def change_a_mount():
    known((442, 442), -100, b"/", 0, ctypes.create_string_buffer(32), 32)


def take_the_cover_off():
    known((166, 39), str(DATA).encode(), 2)


def pivot():
    known((155, 41), b"/tmp", b"/tmp")


def write_beside_the_root():
    write("/left")


def write_among_devices():
    write("/dev/left")


def replace_a_device():
    os.unlink("/dev/null")


def make_a_device():
    os.mknod("/tmp/memory", 0o20600, os.makedev(1, 1))


def open_by_handle():
    known((304, 265), -100, ctypes.create_string_buffer(16), 0)


def lease_a_file():
    with open(TABLE) as file:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)


def be_told_of_changes():
    fcntl.fcntl(os.open(DATA, os.O_RDONLY), fcntl.F_NOTIFY, 2)


def watch_all():
    known((300, 262), 0, 0)


def mark_by_a_long_request():
    with open(TABLE) as file:
        call((16, 29), file.fileno(), 1 << 32 | 0x40086602, ctypes.create_string_buffer(8))


def take_room_for_a_file():
    with open(TABLE) as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 20)


# /proc, /sys and cgroups ----------------------------------------------------------------


def press_the_system_key():
    write("/proc/sysrq-trigger", "h")


def program_for_cores():
    write("/proc/sys/kernel/core_pattern", "|/bin/sh")


def be_spared_where_memory_runs_out():
    write("/proc/self/oom_score_adj", "-1000")


def memory_of_the_first_process():
    with open("/proc/1/mem", "r+b"):
        pass


def namespaces_of_the_first_process():
    call((308, 268), os.open("/proc/1/ns/user", os.O_RDONLY), 0)


def files_of_the_first_process():
    for number in os.listdir("/proc/1/fd"):
        if int(number) > 2:
            os.open(f"/proc/1/fd/{number}", os.O_RDONLY)
            return
    raise OSError("it has none")


def root_of_the_first_process():
    os.listdir("/proc/1/root/etc/shadow/..")


def processor_off():
    write("/sys/devices/system/cpu/cpu1/online")


def own_cgroup():
    os.mkdir("/sys/fs/cgroup/left")


def affinity_of_interrupts():
    write("/proc/irq/default_smp_affinity", "1")


# Calls on behalf of the app ----------------------------------------------------------------


def ring():
    known((425, 425), 1, ctypes.create_string_buffer(120))


def ring_of_another():
    known((427, 427), 0, 0, None, 0)


def old_asynchronous_calls():
    known((206, 0), 1, ctypes.byref(ctypes.c_ulong()))


def faults_of_its_own():
    known((323, 282), 1)


def faults_by_a_device():
    os.open("/dev/userfaultfd", os.O_RDWR)


def listener_of_its_own_filter():
    program = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0x7FC00000))
    known((317, 277), 1, 8, struct.pack("@HP", 1, ctypes.addressof(program)))


def another_filter():
    known((157, 167), 22, 2, 0, 0, 0)


# Other processes, and what outlives this one ----------------------------------------------------


def key_of_the_session():
    known((248, 217), b"user", b"murmur", b"x", 1, -3)


def key_of_the_user():
    known((250, 219), 0, -4, 1)


def key_by_a_program():
    known((249, 218), b"user", b"murmur", b"x", -3)


def memory_without_a_file():
    known((319, 279), b"x", 0)


def secret_memory():
    known((447, 447), 0)


def be_traced():
    known((101, 117), 0, 0, 0, 0)


def trace_the_first_process():
    known((101, 117), 16, 1, 0, 0)


def write_into_the_first_process():
    part = struct.pack("@PN", 0x400000, 4)
    known((311, 271), 1, part, 1, part, 1, 0)


def abstract_socket():
    known((41, 198), 1, 1, 0)


def pair_of_sockets():
    known((53, 199), 1, 1, 0, ctypes.create_string_buffer(8))


def send_a_descriptor():
    known((46, 211), 1, ctypes.create_string_buffer(64), 0)


def type_into_the_terminal():
    fcntl.ioctl(2, termios.TIOCSTI, b"x")


def signal_to_the_owner_of_a_pipe():
    reading, _ = os.pipe()
    call((72, 25), reading, 1 << 32 | 8, 1)


def leave_the_group():
    known((112, 157))


# Other tables of calls ----------------------------------------------------------------


def call_of_x32():
    call(0x40000000 | 39)


def call_of_32_bits():
    if not X86:
        raise OSError("no such table")
    # socketcall(SYS_SOCKET), by int 0x80; it saves what it changes.
    _run(b"\x53\xb8\x66\x00\x00\x00\xbb\x01\x00\x00\x00\x31\xc9\xcd\x80\x5b\xc3")


def _run(code):
    place = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    place.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(place))
    ctypes.CFUNCTYPE(ctypes.c_int)(address)()


def namespace_by_a_long_flag():
    if not call((56, 220), 1 << 32 | 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0):
        os._exit(0)


def clock_namespace():
    if not call((56, 220), 0x80 | signal.SIGCHLD, 0, 0, 0, 0):
        os._exit(0)


# Limits, clocks and load ----------------------------------------------------------------


def more_memory():
    resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def core_for_a_program():
    """A limit of 0 bytes, unlike one of 1, starts the machine's program for cores: core(5)."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def core_by_a_long_number():
    call((302, 261), 0, 1 << 32 | 4, bytes(16), None)


def limits_of_the_first_process():
    call((302, 261), 1, 7, bytes(16), None)


def locked_memory():
    known((149, 228), ctypes.create_string_buffer(4096), 4096)


def larger_pipes():
    fcntl.fcntl(os.pipe()[0], 1031, 1 << 20)


def quota_of_the_disk():
    known((179, 60), 0, None, 0, None)


def set_the_clock():
    known((227, 112), 0, struct.pack("@qq", 1, 0))


def bend_the_clock():
    known((159, 171), ctypes.create_string_buffer(256))


def first_of_all():
    known((144, 119), 0, 1, struct.pack("@i", 1))


def last_of_all():
    known((141, 140), 0, 0, 19)


def processors_of_one():
    known((203, 122), 0, 8, struct.pack("@Q", 1))


def share_a_core_with_nobody():
    known((157, 167), 62, 1, 0, 0, 0)


def move_pages():
    known((279, 239), 1, 0, None, None, None, 0)


def counters_of_the_processor():
    known((298, 241), ctypes.create_string_buffer(128), 0, -1, -1, 0)


def pages_in_memory():
    known((27, 232), ctypes.c_void_p(mmap.PAGESIZE), 0, None)


# What still gets out: docs/any-flower-app.md -----------------------------------------------------


def lock_a_file():
    with open(TABLE) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def load_the_processor():
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass


def bring_a_file_into_memory():
    TABLE.read_bytes()


STILL_OUT = {"lock_a_file", "load_the_processor", "bring_a_file_into_memory"}
ATTACKS = {
    name: found
    for name, found in list(globals().items())
    if inspect.isfunction(found) and not name.startswith("_") and not found.__code__.co_argcount
}


def tried(attack):
    """ "out", or how it was stopped; in a fork, for some end their process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        try:
            attack()
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


if __name__ == "__main__":
    for sync in (os.sync, lambda: os.fsync(os.open(TABLE, os.O_RDONLY))):
        sync()
    os.chmod("/dev/null", 0o600)
    os.utime("/dev/null", (1, 1))
    print(json.dumps({name: tried(attack) for name, attack in ATTACKS.items()}))
