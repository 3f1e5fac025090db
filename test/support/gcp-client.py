"""Drives a stand-in for Compute Engine with Google's own client, and prints what it read as JSON."""

import json
import sys

from google.api_core import exceptions
from google.api_core.client_options import ClientOptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import compute_v1

endpoint, zone = sys.argv[1:3]
project = "acme-ci"
how = {"credentials": AnonymousCredentials(), "client_options": ClientOptions(api_endpoint=endpoint), "transport": "rest"}
instances = compute_v1.InstancesClient(**how)
operations = compute_v1.ZoneOperationsClient(**how)


def all_of(client, kind):
    """What a list over all zones has by zone, and what it warns of."""
    request = {"project": project, "filter": 'labels.onejob-owner="lab-7"'}
    found, warnings = [], {}
    for scope, part in client.aggregated_list(request=request):
        found += [one for one in getattr(part, kind)]
        if part.warning.code:
            warnings.setdefault(part.warning.code, []).append(scope)
    return found, warnings


def ended(operation):
    # `insert(...).result()` would ask Google's real address, so it is looked at by hand.
    while operation.status != compute_v1.Operation.Status.DONE:
        operation = operations.get(project=project, zone=zone, operation=operation.name)
    return operation


def wanted(name):
    below = f"projects/{project}/zones/{zone}"
    seconds = compute_v1.Duration(seconds=3600)
    return compute_v1.Instance(
        name=name,
        machine_type=f"{below}/machineTypes/n1-standard-4",
        labels={"onejob-owner": "lab-7"},
        disks=[
            compute_v1.AttachedDisk(
                boot=True,
                auto_delete=True,
                initialize_params=compute_v1.AttachedDiskInitializeParams(
                    source_image="projects/acme-images/global/images/family/gpu-base",
                    disk_size_gb=50,
                    labels={"onejob-owner": "lab-7"},
                ),
            )
        ],
        network_interfaces=[
            compute_v1.NetworkInterface(subnetwork=f"projects/{project}/regions/{zone[:-2]}/subnetworks/default")
        ],
        scheduling=compute_v1.Scheduling(
            provisioning_model="STANDARD", max_run_duration=seconds, instance_termination_action="DELETE"
        ),
    )


def insert(name, request_id):
    request = {"project": project, "zone": zone, "instance_resource": wanted(name), "request_id": request_id}
    return instances.insert_unary(request=request)


mine, empty = all_of(instances, "instances")
seen = mine[0]
disks, _ = all_of(compute_v1.DisksClient(**how), "disks")
first = insert("by-python", "11111111-2222-4333-8444-555555555555")
again = insert("by-python", "11111111-2222-4333-8444-555555555555")
ended(first)
try:
    insert("by-python", "99999999-2222-4333-8444-555555555555")
    twin = "made"
except exceptions.Conflict as error:
    twin = error.code.name
stockout = ended(insert("no-capacity", "77777777-2222-4333-8444-555555555555"))
made = instances.get(project=project, zone=zone, instance="by-python")
for name in ("by-python", seen.name):
    removal = instances.delete_unary(project=project, zone=zone, instance=name)
    ended(removal)
left, unreachable = all_of(instances, "instances")

print(
    json.dumps(
        {
            "seen": {
                "name": seen.name,
                "status": seen.status,
                "labels": dict(seen.labels),
                "type": seen.machine_type.rsplit("/", 1)[-1],
                "gpus": [[one.accelerator_type.rsplit("/", 1)[-1], one.accelerator_count] for one in seen.guest_accelerators],
                "model": seen.scheduling.provisioning_model,
                "seconds": seen.scheduling.max_run_duration.seconds,
                "action": seen.scheduling.instance_termination_action,
                "ends": seen.resource_status.scheduling.termination_timestamp,
                "metadata": {item.key: item.value for item in seen.metadata.items},
            },
            "disks": [[disk.name, disk.labels["onejob-run"], len(disk.users)] for disk in disks],
            "empty": sorted(empty),
            "sameOperation": first.name == again.name and first.client_operation_id == "11111111-2222-4333-8444-555555555555",
            "twin": twin,
            "stockout": [[error.code, dict(error.error_details[0].error_info.metadatas)] for error in stockout.error.errors],
            "made": [made.name, made.status, bool(made.resource_status.scheduling.termination_timestamp)],
            "left": [one.name for one in left],
            "warnings": sorted(unreachable),
        }
    )
)
