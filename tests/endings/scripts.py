"""Scripts that end, or go on, in every way there is. Each says what the verdict must be, and what must be said."""

from __future__ import annotations

from dataclasses import dataclass

_PREAMBLE = """
import asyncio, atexit, multiprocessing, os, queue, signal, subprocess, sys, threading, time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
import torch

def train(gib=0, steps=100000):
    model = torch.nn.Linear(512, 512).cuda()
    held = torch.empty(gib << 30, dtype=torch.uint8, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(steps):
        model(torch.randn(16, 512, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return "trained"
"""

FITS, DOES_NOT_FIT, CANNOT = 0, 1, 3


@dataclass(frozen=True)
class Ending:
    name: str
    body: str
    code: int = FITS
    says: str = ""
    """On either stream."""

    @property
    def text(self) -> str:
        return f"{_PREAMBLE}\n{self.body}\n"


ENDINGS = (
    # Threads.
    Ending("thread trains", "t = threading.Thread(target=train); t.start(); t.join()"),
    Ending("thread trains, not waited for", "threading.Thread(target=train).start()"),
    Ending("daemon thread trains", "threading.Thread(target=train, daemon=True).start()\nwhile True: time.sleep(1)"),
    Ending("thread trains, main waits for a queue", "threading.Thread(target=train).start(); queue.Queue().get()"),
    Ending("thread does not fit", "t = threading.Thread(target=train, args=(30,)); t.start(); t.join()", DOES_NOT_FIT),
    Ending("thread does not fit, main waits", "threading.Thread(target=train, args=(30,)).start(); queue.Queue().get()",
           DOES_NOT_FIT),
    Ending("pool of threads", "with ThreadPoolExecutor(2) as pool: pool.submit(train).result()"),
    Ending("pool of threads, nobody asks", "pool = ThreadPoolExecutor(2); pool.submit(train)"),
    Ending("pool of threads, left idle", "pool = ThreadPoolExecutor(2); pool.submit(print).result(); train()"),
    Ending("thread that never ends", "threading.Thread(target=lambda: time.sleep(10000)).start(); train(0, 1)",
           says="was still there when the script had ended"),
    Ending("thread that never ends, training is stopped",
           "threading.Thread(target=lambda: time.sleep(10000)).start(); train()"),
    Ending("thread fails", "t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join(); train(0, 3)",
           says="a thread of the script failed: ZeroDivisionError"),
    Ending("sys.exit in a thread", "t = threading.Thread(target=sys.exit, args=(5,)); t.start(); t.join(); train()"),
    Ending("os._exit in a thread", "train(0, 3) if 0 else None\nthreading.Thread(target=os._exit, args=(0,)).start()\n"
           "time.sleep(10000)", CANNOT, "allocated nothing"),
    # Loops of asyncio.
    Ending("asyncio", "async def main(): train()\nasyncio.run(main())"),
    Ending("asyncio in a task that nobody awaits",
           "async def main():\n    train()\nasync def outer():\n    task = asyncio.create_task(main())\n"
           "    await asyncio.sleep(10000)\nasyncio.run(outer())"),
    Ending("asyncio in a thread", "async def main():\n    await asyncio.to_thread(train)\nasyncio.run(main())"),
    # Ends of its own.
    Ending("os._exit(0) of what does not fit", "try: train(30)\nfinally: os._exit(0)", DOES_NOT_FIT),
    Ending("os._exit(0)", "train(1, 3)\nos._exit(0)"),
    Ending("os._exit(7)", "train(1, 1)\nos._exit(7)", CANNOT, "exit code 7"),
    Ending("os.abort", "train(1, 1)\nos.abort()", CANNOT, "exit code 134"),
    Ending("SIGKILL to itself", "train(1, 1)\nos.kill(os.getpid(), signal.SIGKILL)", CANNOT, "exit code 137"),
    Ending("raise_signal", "train(1, 1)\nsignal.raise_signal(signal.SIGTERM)", CANNOT, "exit code 143"),
    Ending("sys.exit(0) in a finally", "try: train(30)\nfinally: sys.exit(0)", DOES_NOT_FIT),
    Ending("sys.exit(0) at exit", "atexit.register(sys.exit, 0)\ntrain(30)", DOES_NOT_FIT),
    Ending("os._exit(0) at exit", "atexit.register(os._exit, 0)\ntrain(30)", DOES_NOT_FIT),
    Ending("fails at exit", "atexit.register(lambda: 1 / 0)\ntrain(0, 3)"),
    Ending("trains at exit", "atexit.register(train, 1)"),
    Ending("hangs at exit", "atexit.register(time.sleep, 10000)\ntrain()"),
    Ending("signal handlers", "for n in (signal.SIGINT, signal.SIGTERM): signal.signal(n, signal.SIG_IGN)\ntrain()"),
    Ending("its own handler is called",
           "signal.signal(signal.SIGTERM, lambda *_: print('asked to stop'))\n"
           "os.kill(os.getpid(), signal.SIGTERM)\ntrain()", says="asked to stop"),
    Ending("except hooks", "sys.excepthook = threading.excepthook = lambda *_: os._exit(0)\ntrain(30)", DOES_NOT_FIT),
    Ending("swallows everything", "while True:\n    try: train()\n    except: pass"),
    Ending("swallows everything at two levels", "def careless():\n    try: train()\n    except: print('oh')\n"
           "while True:\n    try: careless()\n    except BaseException: continue"),
    Ending("collects every error", "errors = []\nwhile True:\n    try: train()\n"
           "    except BaseException as error: errors.append(error)"),
    # Processes that use the card.
    Ending("fork trains", "p = multiprocessing.get_context('fork').Process(target=train, args=(2,))\n"
           "p.start(); p.join()", says="what is shown is the process that is started here"),
    Ending("fork does not fit", "p = multiprocessing.get_context('fork').Process(target=train, args=(30,))\n"
           "p.start(); p.join()", DOES_NOT_FIT, "what is shown is the process that is started here"),
    Ending("fork does not fit, nobody waits", "multiprocessing.get_context('fork').Process(target=train, "
           "args=(30,)).start()", DOES_NOT_FIT),
    Ending("fork trains, the parent waits for a queue",
           "c = multiprocessing.get_context('fork'); q = c.Queue(); c.Process(target=train).start(); q.get()"),
    Ending("spawn trains", "p = multiprocessing.get_context('spawn').Process(target=train, args=(2,))\n"
           "p.start(); p.join()"),
    Ending("spawn does not fit", "p = multiprocessing.get_context('spawn').Process(target=train, args=(30,))\n"
           "p.start(); p.join()", DOES_NOT_FIT),
    Ending("spawn gives a copy, without what its object leaves out",
           "class Data:\n    def __init__(self): self.file, self.weight = open(os.devnull), torch.ones(2)\n"
           "    def __getstate__(self): return {'weight': self.weight}\n"
           "def work(data, lock):\n    with lock: train(30) if list(vars(data)) == ['weight'] else sys.exit(9)\n"
           "c = multiprocessing.get_context('spawn')\nlock = c.Lock()\n"
           "p = c.Process(target=work, args=(Data(), lock)); p.start(); p.join()", DOES_NOT_FIT),
    Ending("spawn of what cannot be copied", "p = multiprocessing.get_context('spawn').Process(\n"
           "    target=lambda: train(30)); p.start(); p.join()", DOES_NOT_FIT),
    Ending("torch.multiprocessing.spawn", "import torch.multiprocessing as mp\n"
           "mp.spawn(lambda rank: train(30), nprocs=1)", DOES_NOT_FIT),
    Ending("torch.multiprocessing.spawn, waited for later", "import torch.multiprocessing as mp\n"
           "mp.spawn(lambda rank: train(30), nprocs=1, join=False).join()", DOES_NOT_FIT),
    Ending("torch.multiprocessing.start_processes", "import torch.multiprocessing as mp\n"
           "mp.start_processes(lambda rank: train(3), nprocs=1, start_method='fork')"),
    Ending("torch.multiprocessing.Process", "import torch.multiprocessing as mp\nmp.set_start_method('spawn')\n"
           "p = mp.Process(target=train, args=(30,)); p.start(); p.join()", DOES_NOT_FIT),
    Ending("os.fork", "pid = os.fork()\nif pid == 0:\n    train(30)\nelse:\n    os.waitpid(pid, 0)", DOES_NOT_FIT),
    Ending("os.fork, the child fits", "pid = os.fork()\nif pid == 0:\n    train(3)\nelse:\n    os.waitpid(pid, 0)"),
    Ending("two processes that fit one by one", "c = multiprocessing.get_context('fork')\n"
           "ps = [c.Process(target=train, args=(13,)) for _ in range(2)]\n"
           "for p in ps: p.start()\nfor p in ps: p.join()", DOES_NOT_FIT, "another process of the run takes"),
    Ending("two processes, one after the other", "c = multiprocessing.get_context('fork')\nfor _ in range(2):\n"
           "    p = c.Process(target=train, args=(13, 2)); p.start(); p.join()"),
    Ending("parent and child together", "held = torch.empty(13 << 30, dtype=torch.uint8, device='cuda')\n"
           "p = multiprocessing.get_context('spawn').Process(target=train, args=(13,)); p.start(); p.join()",
           DOES_NOT_FIT),
    Ending("a process that trains has a loader with workers", "from torch.utils.data import DataLoader\n"
           "def load():\n    train(13, 2)\n    for _ in DataLoader(range(8), num_workers=2): pass\n"
           "p = multiprocessing.get_context('spawn').Process(target=load); p.start(); p.join()"),
    Ending("a process that has used the card forks one that does",
           "def careful():\n    try: train()\n    except RuntimeError as error: print(error, flush=True)\n"
           "def again():\n    train(1, 2)\n"
           "    p = multiprocessing.get_context('fork').Process(target=careful); p.start(); p.join()\n"
           "p = multiprocessing.get_context('spawn').Process(target=again); p.start(); p.join()",
           says="Cannot re-initialize CUDA in forked subprocess"),
    Ending("pool of processes", "with ProcessPoolExecutor(1, multiprocessing.get_context('fork')) as pool:\n"
           "    pool.submit(train, 30).result()", DOES_NOT_FIT),
    Ending("pool of processes that fit", "with multiprocessing.get_context('fork').Pool(1) as pool:\n"
           "    pool.apply(train, (2, 2))"),
    Ending("the child catches it", "def careful():\n    try: train(30)\n    except torch.OutOfMemoryError: train(3)\n"
           "p = multiprocessing.get_context('fork').Process(target=careful); p.start(); p.join()"),
    Ending("the child is killed", "c = multiprocessing.get_context('fork'); done = c.Event()\n"
           "p = c.Process(target=lambda: (train(3, 1), done.set(), time.sleep(10000)))\n"
           "p.start(); done.wait(); p.kill(); p.join()", CANNOT, "was killed while it used the card"),
    Ending("the child is terminated", "c = multiprocessing.get_context('fork'); done = c.Event()\n"
           "p = c.Process(target=lambda: (train(3, 1), done.set(), time.sleep(10000)))\n"
           "p.start(); done.wait(); p.terminate(); p.join()"),
    Ending("the child fails", "p = multiprocessing.get_context('fork').Process(target=lambda: (torch.ones(3).cuda(), "
           "1 / 0))\np.start(); p.join()", CANNOT, "ZeroDivisionError"),
    Ending("fork after CUDA was used", "x = torch.ones(3).cuda()\n"
           "p = multiprocessing.get_context('fork').Process(target=train); p.start(); p.join(); assert p.exitcode == 0",
           CANNOT, "AssertionError"),
    Ending("stopped among the workers of a DataLoader", "from torch.utils.data import DataLoader\n"
           "model = torch.nn.Linear(512, 512).cuda()\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
           "for batch in DataLoader(torch.randn(6400, 512), batch_size=4, num_workers=3, persistent_workers=True):\n"
           "    model(batch.cuda()).sum().backward()\n    optimizer.step()"),
    Ending("workers of a DataLoader", "from torch.utils.data import DataLoader\n"
           "loader = DataLoader(torch.randn(64, 512), batch_size=4, num_workers=2)\n"
           "for batch in loader: batch.cuda()\ntrain()"),
    # Programs.
    Ending("starts python", "open('child.py', 'w').write('print(1)')\n"
           "subprocess.run([sys.executable, 'child.py', '--batch', '8'])", CANNOT, "vramcast run child.py --batch 8"),
    Ending("starts python beside", "subprocess.run([sys.executable, '-m', 'this'], stdout=subprocess.DEVNULL)\ntrain()",
           says="was not looked at"),
    Ending("starts a shell", "os.system('torchrun --nproc-per-node 1 child.py 2>/dev/null')", CANNOT,
           "vramcast run torchrun --nproc-per-node 1 child.py"),
    Ending("replaces itself", "os.execv(sys.executable, [sys.executable, 'train.py'])", CANNOT, "replaces itself"),
    Ending("replaces itself and does not mind", "try: os.execvp('python3', ['python3', 'train.py', '-x'])\n"
           "except Exception: train()", CANNOT, "vramcast run train.py -x"),
    Ending("leaves a program running", "subprocess.Popen(['sleep', '1000'])\ntrain()"),
)  # fmt: skip

STREAMS = (
    Ending("closes", "for stream in (sys.stdin, sys.stdout, sys.stderr): stream.close()\n"
           "for n in range(3): os.close(n)\ntrain(30)", DOES_NOT_FIT, "Does not fit"),
    Ending("redirects", "sys.stdout = sys.stderr = open(os.devnull, 'w')\n"
           "for n in range(3): os.dup2(sys.stdout.fileno(), n)\ntrain(30)", DOES_NOT_FIT, "Does not fit"),
    Ending("prints everywhere", "import ctypes\nprint('a'); os.write(1, b'b'); os.system('echo c')\n"
           "ctypes.CDLL(None).puts(b'd'); ctypes.CDLL(None).fflush(None)\natexit.register(print, 'e')\ntrain(30)",
           DOES_NOT_FIT),
)  # fmt: skip
"""What it does to its streams, in a process of its own."""
