class ReduceOp(int):
    SUM, MAX = 0, 4


class AllreduceOptions:
    pass


class BroadcastOptions:
    pass


class Work:
    def wait(self):
        return True


class Store:
    def get(self, key):
        return b""

    def wait(self, keys):
        return None


class ProcessGroup:
    group_name = "0"

    def __init__(self, size):
        self._size = size

    def size(self):
        return self._size

    def rank(self):
        return 0

    def allreduce(self, tensors, opts):
        return Work()

    def broadcast(self, tensors, opts):
        return Work()


class GroupMember:
    WORLD = None
    NON_GROUP_MEMBER = object()


def is_initialized():
    return GroupMember.WORLD is not None


def init_process_group(backend=None, init_method=None, timeout=None, world_size=-1, rank=-1, store=None):
    if backend == "broken":
        raise ValueError("no such backend")
    GroupMember.WORLD = ProcessGroup(world_size)


def destroy_process_group(group=None):
    GroupMember.WORLD = None


def new_group(ranks=None):
    return ProcessGroup(len(ranks or [0]))


def get_rank(group=None):
    return 0


def get_world_size(group=None):
    return GroupMember.WORLD.size()


def get_backend(group=None):
    return "gloo"


def _get_default_group():
    return GroupMember.WORLD


def _rank_not_in_group(group):
    return group is GroupMember.NON_GROUP_MEMBER


def all_gather_object(object_list, obj, group=None):
    object_list[:] = [obj]


def all_reduce(tensor, op=ReduceOp.SUM, group=None):
    if _rank_not_in_group(group):
        return None
    return GroupMember.WORLD.allreduce([tensor], AllreduceOptions()).wait()
