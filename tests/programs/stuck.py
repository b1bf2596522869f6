"""A process whose memory nobody can read: one thread of it writes to a file on a disk that hangs, while another one changes the
map of its memory. Arguments: the file on that disk, and a file that it writes its id to, and that is removed once the disk
hangs. Started by tests of orphans."""

import ctypes
import mmap
import os
import sys
import threading
import time

on_disk, hangs = sys.argv[1:]
with open(on_disk, "r+b") as file:
    memory = mmap.mmap(file.fileno(), 1 << 20)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
with open(hangs + ".draft", "w") as told:
    told.write(str(os.getpid()))
os.rename(hangs + ".draft", hangs)
while os.path.exists(hangs):
    time.sleep(0.01)
threading.Thread(target=lambda: ctypes.memset(address, 1, 1)).start()
# The writer is in the kernel by then.
time.sleep(0.5)
protect = ctypes.CDLL(None).mprotect
threading.Thread(target=lambda: protect(ctypes.c_void_p(address), 1 << 20, 1)).start()
time.sleep(1000)
