"""A device as Flower's ClientApp: in a stock SuperNode, or in Flower's simulation; needs the extra `flower`.

A SuperNode names its device's folder: `--node-config 'device="PATH"'`, and the federation's by `federation="PATH"`
where it does not lie two folders above. A simulation has the federation in its run configuration, and node i is its
i-th device. No exception leaves a device: Flower would send its words to the server.
"""

from __future__ import annotations

import sys
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from veilrec.core.errors import BadInput, VeilrecError
from veilrec.federation import federation
from veilrec.federation.client.flower_client import FlowerClient
from veilrec.federation.facts import FederationFacts
from veilrec.federation.federation import DEVICES
from veilrec.federation.flower_messages import DECLINED, fields_of, record_of

app = ClientApp()


@app.query()  # type: ignore[untyped-decorator]
def answer(message: Message, context: Context) -> Message:
    """Answer one message."""
    try:
        folder, place = folders_of(context)
        with FlowerClient(folder, FederationFacts(place, federation.read(place)), _say) as device:
            fields = device.reply(fields_of(message))
    except (VeilrecError, OSError) as error:
        _say(str(error))
        fields = DECLINED
    return Message(record_of(fields), reply_to=message)


def folders_of(context: Context) -> tuple[Path, Path]:
    """The folder of this node's device, and that of its federation."""
    node = context.node_config
    if "device" in node:
        folder = Path(str(node["device"]))
        return folder, Path(str(node.get("federation", folder.resolve().parent.parent)))
    place, number = Path(str(context.run_config.get("federation", ""))), int(node.get("partition-id", -1))
    devices = sorted(found for found in (place / DEVICES).glob("*") if found.is_dir())
    if not 0 <= number < len(devices):
        raise BadInput(f"node {number} has no device in {place}: start as many nodes as `federate init` made devices")
    return devices[number], place


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
