"""What torch's init_process_group() reads from the environment, taken from the variables of those who start ranks without torchrun."""

import re
import zlib


def _ancestor(names):
    """Returns the id of the nearest ancestor whose program's name begins with one of `names`; empty: there is none."""
    process = "self"
    while process != "0":
        try:
            with open(f"/proc/{process}/stat") as file:
                name, rest = re.fullmatch(r"\d+ \((.*)\) (.*)", file.read().strip(), re.DOTALL).groups()
        except OSError:
            break
        if name.startswith(names):
            return process
        process = rest.split()[1]
    return ""


def _first_host(nodes):
    """Returns the first host of Slurm's list: "gpu[07-09],login" begins with gpu07."""
    before, number, after = re.match(r"([^\[,]*)(?:\[(\w+)[^\]]*\]([^,\[]*))?", nodes).groups()
    return before + (number or "") + (after or "")


def variables(environ):
    """Returns the variables to be added to `environ`, by which a process that mpirun (Open MPI's or MPICH's) or srun has started finds
    the others; none if it has them already or nobody known has started it. MASTER_ADDR and MASTER_PORT are among them where the starter
    tells the first host and a number of the job."""
    if any(name in environ for name in ("RANK", "WORLD_SIZE", "TSP_NODE_FD")):
        return {}
    local_size = host = None
    if "OMPI_COMM_WORLD_RANK" in environ:
        rank, size = environ["OMPI_COMM_WORLD_RANK"], environ["OMPI_COMM_WORLD_SIZE"]
        local_rank, local_size = environ.get("OMPI_COMM_WORLD_LOCAL_RANK"), environ.get("OMPI_COMM_WORLD_LOCAL_SIZE")
        job = environ.get("PMIX_NAMESPACE", "")
    elif "SLURM_PROCID" in environ and ("SLURM_STEP_ID" in environ or "SLURM_STEPID" in environ):  # a batch script has no step
        rank, size = environ["SLURM_PROCID"], environ.get("SLURM_STEP_NUM_TASKS") or environ.get("SLURM_NTASKS", "1")
        local_rank = environ.get("SLURM_LOCALID")
        if (environ.get("SLURM_STEP_NUM_NODES") or environ.get("SLURM_NNODES", "1")) == "1":
            local_size = size
        job = f"{environ.get('SLURM_JOB_ID', '')}.{environ.get('SLURM_STEP_ID') or environ.get('SLURM_STEPID')}"
        nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "")
        host = _first_host(nodes) if nodes else None
    elif "PMI_RANK" in environ and "PMI_SIZE" in environ:
        rank, size = environ["PMI_RANK"], environ["PMI_SIZE"]
        local_rank, local_size = environ.get("MPI_LOCALRANKID"), environ.get("MPI_LOCALNRANKS")
        job = _ancestor(("hydra", "mpiexec", "mpirun"))
        if local_size != size:
            job = ""  # each node has another proxy
    else:
        return {}
    if local_size == size:
        host = "127.0.0.1"
    # Below the ports that kernels give to clients.
    port = str(20000 + zlib.crc32(job.encode()) % 12000) if job else None
    found = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": local_size, "MASTER_ADDR": host, "MASTER_PORT": port}
    return {name: value for name, value in found.items() if value is not None and name not in environ}
