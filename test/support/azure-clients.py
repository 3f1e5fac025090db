"""Microsoft's own clients of Azure against a stand-in: argument 1 is what to do, the standard input is JSON, and so is the output."""

import enum
import json
import os
import re
import sys
import time
from collections.abc import Mapping

from azure.core.credentials import AccessToken
from azure.core.exceptions import HttpResponseError
from azure.mgmt.compute import ComputeManagementClient, models as compute_models
from azure.mgmt.computeschedule import ComputeScheduleMgmtClient, models as schedule_models
from azure.mgmt.resource.resources import ResourceManagementClient, models as resource_models

given = json.load(sys.stdin)


class Token:
    def get_token(self, *_scopes, **_more):
        return AccessToken(os.environ["AZURE_TOKEN"], int(time.time()) + 3600)


def client(kind, version):
    where = {"base_url": given["url"], "connection_verify": given["ca"], "credential_scopes": [given["url"] + "/.default"]}
    return kind(Token(), given["subscription"], api_version=version, polling_interval=0, retry_total=0, **where)


def strange(model, path):
    """Fields that the model does not have, and values that are not in its enumeration."""
    if isinstance(model, (list, tuple)):
        return [found for index, one in enumerate(model) for found in strange(one, f"{path}[{index}]")]
    if not hasattr(type(model), "_attr_to_rest_field"):
        return []
    found = []
    fields = {field._rest_name: name for name, field in type(model)._attr_to_rest_field.items()}
    hints = {name: str(hint) for base in reversed(type(model).__mro__) for name, hint in getattr(base, "__annotations__", {}).items()}
    for name in dict(model):
        if name not in fields:
            found.append(f"{path}.{name} is unknown")
            continue
        value = getattr(model, fields[name])
        # Its list of sizes ended years ago.
        for word in [] if name == "vmSize" else re.findall(r"_models\.(\w+)", hints.get(fields[name], "")):
            kind = next((getattr(one, word) for one in all_models if hasattr(one, word)), None)
            if isinstance(kind, enum.EnumMeta) and str(getattr(value, "value", value)) not in [one.value for one in kind]:
                found.append(f"{path}.{name} is not one of {word}")
        plain = isinstance(value, Mapping) and not hasattr(type(value), "_attr_to_rest_field")
        found += [] if plain else strange(value, f"{path}.{name}")
    return found


all_models = (compute_models, schedule_models, resource_models)


def check():
    kinds = {"machine": compute_models.VirtualMachine, "end": schedule_models.SubmitDeallocateRequest, "group": resource_models.ResourceGroup}
    kinds["status"] = schedule_models.GetOperationStatusRequest
    return {name: strange(kinds[name](body), name) for name, body in given["bodies"].items()}


def error_of(error):
    return {"code": error.error.code if error.error else None, "status": error.status_code, "message": error.message[:300]}


def drive():
    groups = client(ResourceManagementClient, "2021-04-01")
    compute = client(ComputeManagementClient, "2025-04-01").virtual_machines
    ends = client(ComputeScheduleMgmtClient, "2025-05-01").scheduled_actions
    group, told = given["group"], {}
    made = groups.resource_groups.create_or_update(group, given["bodies"]["group"])
    told["group"] = [made.name, made.properties.provisioning_state]
    try:
        machine = compute.begin_create_or_update(group, group, given["bodies"]["machine"]).result()
    except HttpResponseError as error:
        return {**told, "error": error_of(error)}
    told["machine"] = [machine.id, machine.properties.provisioning_state]
    filter = f"tagName eq 'onejob-owner' and tagValue eq '{given['owner']}'"
    told["groups"] = [one.name for one in groups.resource_groups.list(filter=filter)]
    told["resources"] = sorted(one.type for one in groups.resources.list(filter=filter))
    told["machines"] = [one.name for one in compute.list_all()]
    statuses = [one.properties.instance_view.statuses for one in compute.list_all(status_only="true")]
    told["power"] = [[one.code for one in each] for each in statuses]
    told["view"] = [one.code for one in compute.instance_view(group, group).statuses]
    told["console"] = compute.retrieve_boot_diagnostics_data(group, group).serial_console_log_blob_uri.split("?")[0]
    submitted = ends.virtual_machines_submit_deallocate(given["location"], given["bodies"]["end"])
    operation = submitted.results[0].operation
    asked = {"operationIds": [operation.operation_id], "correlationid": given["bodies"]["end"]["correlationid"]}
    status = ends.virtual_machines_get_operation_status(given["location"], asked).results[0].operation
    told["end"] = [status.op_type, status.state, status.deadline.isoformat()]
    compute.begin_delete(group, group, force_deletion=True).result()
    told["after"] = [one.name for one in compute.list_all()]
    try:
        groups.resource_groups.begin_delete(group, force_deletion_types="Microsoft.Compute/virtualMachines").result()
    except HttpResponseError as error:
        told["forced"] = error_of(error)["code"]
    groups.resource_groups.begin_delete(group).result()
    try:
        groups.resource_groups.get(group)
    except HttpResponseError as error:
        told["gone"] = [error.status_code, error.error.code]
    return told


def read():
    groups = client(ResourceManagementClient, "2021-04-01").resource_groups
    filter = f"tagName eq 'onejob-owner' and tagValue eq '{given['owner']}'"
    shown = [
        {"name": one.name, "location": one.location, "tags": one.tags, "state": one.properties.provisioning_state}
        for one in groups.list(filter=filter)
    ]
    machines = []
    for one in client(ComputeManagementClient, "2025-04-01").virtual_machines.list_all():
        its = one.properties
        nics = [each.properties.delete_option for each in its.network_profile.network_interfaces]
        machines.append(
            {"id": one.id, "tags": one.tags, "size": its.hardware_profile.vm_size, "priority": its.priority, "nics": nics}
            | {"eviction": its.eviction_policy, "disk": its.storage_profile.os_disk.delete_option}
        )
    return {"groups": shown, "machines": machines}


json.dump({"check": check, "drive": drive, "read": read}[sys.argv[1]](), sys.stdout)
