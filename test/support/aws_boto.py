"""boto3 against an AWS at an address: drives it as a person's script would, and prints what it read as JSON.

    aws_boto.py drive http://127.0.0.1:1234
    aws_boto.py check < requests.json    each request of onejob against botocore's model of the service
    aws_boto.py policy policy.json       what is wrong with a policy, by the tables of actions, resources and conditions of IAM
"""
import json
import re
import sys
from urllib.parse import parse_qsl

import boto3
import botocore.session
from botocore.config import Config
from botocore.exceptions import ClientError
from botocore.validate import ParamValidator

KEYS = {"aws_access_key_id": "AKIAIOSFODNN7EXAMPLE", "aws_secret_access_key": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"}


def drive(url):
    def client(name):
        retries = Config(retries={"total_max_attempts": 1})
        return boto3.client(name, region_name="us-west-2", endpoint_url=url, config=retries, **KEYS)

    def code(call, **args):
        try:
            call(**args)
            return None
        except ClientError as error:
            return [error.response["Error"]["Code"], error.response["ResponseMetadata"]["HTTPStatusCode"]]

    ec2, scheduler, ssm = client("ec2"), client("scheduler"), client("ssm")
    parameter = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
    image = ssm.get_parameter(Name=parameter)["Parameter"]["Value"]
    tags = [{"Key": "onejob-owner", "Value": "boto"}]
    kinds = ["instance", "volume", "network-interface", "spot-instances-request"]
    order = {
        "ImageId": image, "InstanceType": "g4dn.xlarge", "MinCount": 1, "MaxCount": 1, "UserData": "#cloud-config\n",
        "InstanceInitiatedShutdownBehavior": "terminate", "InstanceMarketOptions": {"MarketType": "spot"},
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1},
        "TagSpecifications": [{"ResourceType": kind, "Tags": tags} for kind in kinds],
        "Placement": {"AvailabilityZone": "us-west-2a"}, "ClientToken": "one",
    }
    first = ec2.run_instances(**order)["Instances"][0]
    same = ec2.run_instances(**order)["Instances"][0]
    other = ec2.run_instances(**{**order, "Placement": {"AvailabilityZone": "us-west-2b"}})["Instances"][0]
    mine = [{"Name": "tag:onejob-owner", "Values": ["boto"]}]
    listed = ec2.get_paginator("describe_instances").paginate(Filters=mine, PaginationConfig={"PageSize": 5})
    machines = [one for page in listed for group in page["Reservations"] for one in group["Instances"]]
    at = "arn:aws:scheduler:::aws-sdk:ec2:terminateInstances"
    target = {"Arn": at, "RoleArn": "arn:aws:iam::123456789012:role/onejob-scheduler", "Input": "{}"}
    timed = {"ScheduleExpression": "at(2099-01-01T00:00:00)", "FlexibleTimeWindow": {"Mode": "OFF"}, "Target": target}
    scheduler.create_schedule(Name="onejob-boto", ActionAfterCompletion="DELETE", **timed)
    again = code(scheduler.create_schedule, Name="onejob-boto", ActionAfterCompletion="DELETE", **timed)
    read = scheduler.get_schedule(Name="onejob-boto")
    schedules = [one["Name"] for one in scheduler.list_schedules(NamePrefix="onejob-")["Schedules"]]
    scheduler.delete_schedule(Name="onejob-boto")
    ended = ec2.terminate_instances(InstanceIds=[first["InstanceId"]])["TerminatingInstances"][0]
    print(json.dumps({
        "who": client("sts").get_caller_identity()["Arn"],
        "quota": client("service-quotas").get_service_quota(ServiceCode="ec2", QuotaCode="L-DB2E81BA")["Quota"]["Value"],
        "same": first["InstanceId"] == same["InstanceId"], "other": first["InstanceId"] != other["InstanceId"],
        "machines": [[one["State"]["Name"], one["InstanceLifecycle"], one["Placement"]["AvailabilityZone"], one["Tags"]] for one in machines],
        "launched": machines[0]["LaunchTime"].year, "disks": [one["State"] for one in ec2.describe_volumes(Filters=mine)["Volumes"]],
        "cards": [one["Status"] for one in ec2.describe_network_interfaces(Filters=mine)["NetworkInterfaces"]],
        "spots": [one["State"] for one in ec2.describe_spot_instance_requests(Filters=mine)["SpotInstanceRequests"]],
        "addresses": ec2.describe_addresses(Filters=mine)["Addresses"], "regions": len(ec2.describe_regions()["Regions"]),
        "image": ec2.describe_images(ImageIds=[image])["Images"][0]["RootDeviceName"],
        "zones": [one["Location"] for one in ec2.describe_instance_type_offerings(
            LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": ["g5.xlarge"]}])["InstanceTypeOfferings"]],
        "schedule": [read["ScheduleExpression"], read["State"], read["Target"] == target, schedules, again],
        "ended": [ended["PreviousState"]["Name"], ended["CurrentState"]["Name"]],
        "errors": {
            "dry": code(ec2.run_instances, **{**order, "ClientToken": "dry"}, DryRun=True),
            "token": code(ec2.run_instances, **{**order, "InstanceType": "g5.xlarge"}),
            "image": code(ec2.run_instances, **{**order, "ClientToken": "x", "ImageId": "ami-0123456789abcdef1"}),
            "malformed": code(ec2.terminate_instances, InstanceIds=["i-x"]),
            "absent": code(ec2.terminate_instances, InstanceIds=["i-0123456789abcdef1"]),
            "parameter": code(ssm.get_parameter, Name="/no"), "schedule": code(scheduler.get_schedule, Name="no"),
        },
    }))


def check(requests):
    """Each problem is a line; no line: all requests are as the models say."""
    session = botocore.session.get_session()
    names = {"servicequotas": "service-quotas"}
    for request in requests:
        service = session.get_service_model(names.get(request["service"], request["service"]))
        operation = service.operation_model(request["action"])
        body = request["body"]
        if service.metadata["protocol"] in ("ec2", "query"):
            pairs = dict(parse_qsl(body, keep_blank_values=True, strict_parsing=True))
            if (pairs.pop("Action"), pairs.pop("Version")) != (request["action"], service.api_version):
                print(f"{request['action']}: another action or version")
            params = {} if operation.input_shape is None else unflatten(pairs, operation.input_shape)
        elif body.startswith("?") or body == "":
            members = operation.input_shape.members.items()
            wire = {member.serialization.get("name", name): (name, member.type_name) for name, member in members}
            found = [(*wire.get(name, (name, "string")), value) for name, value in parse_qsl(body[1:])]
            params = {name: int(value) if kind == "integer" else value for name, kind, value in found}
        else:
            params = json.loads(body)
        if operation.input_shape is not None:
            for name in operation.input_shape.required_members:
                if operation.input_shape.members[name].serialization.get("location") == "uri":
                    params.setdefault(name, "onejob-in-the-path")
            report = ParamValidator().validate(params, operation.input_shape)
            problems = ([report.generate_report()] if report.has_errors() else []) + list(values(params, operation.input_shape, ""))
            for problem in problems:
                print(f"{request['service']} {request['action']}: {problem}")


def wire_name(member, name):
    """As EC2's serializer of botocore has it."""
    query, own = member.serialization.get("queryName"), member.serialization.get("name")
    return query or (own[0].upper() + own[1:] if own else name)


def unflatten(pairs, shape):
    """Parameters of the Query API as botocore takes them; an unknown name stays as it is, and is reported."""
    if shape.type_name == "structure":
        found, used = {}, set()
        for name, member in shape.members.items():
            wire = wire_name(member, name)
            inner = {key[len(wire) + 1:]: value for key, value in pairs.items() if key == wire or key.startswith(wire + ".")}
            used.update(key for key in pairs if key == wire or key.startswith(wire + "."))
            if inner:
                found[name] = unflatten(inner, member)
        return {**found, **{key: value for key, value in pairs.items() if key not in used}}
    if shape.type_name == "list":
        numbers = sorted({int(key.split(".")[0]) for key in pairs})
        assert numbers == list(range(1, len(numbers) + 1)), f"a list does not count from 1: {list(pairs)}"
        cut = [{key.split(".", 1)[1] if "." in key else "": value for key, value in pairs.items() if key.split(".")[0] == str(number)} for number in numbers]
        return [unflatten(one, shape.member) for one in cut]
    value = pairs[""] if list(pairs) == [""] else pairs
    if shape.type_name in ("integer", "long"):
        return int(value)
    return {"true": True, "false": False}[value] if shape.type_name == "boolean" else value


def values(value, shape, path):
    """What the validator of botocore leaves out: enums, patterns and lengths."""
    if shape.type_name == "structure":
        for name, inner in value.items():
            if name in shape.members:
                yield from values(inner, shape.members[name], f"{path}.{name}")
    elif shape.type_name == "list":
        for inner in value:
            yield from values(inner, shape.member, f"{path}[]")
    elif shape.type_name == "string":
        about = shape.metadata
        if shape.enum and value not in shape.enum:
            yield f"{path} is {value!r}, not one of {shape.enum}"
        if "pattern" in about and not re.search(about["pattern"], value):
            yield f"{path} is {value!r}, which does not match {about['pattern']}"
        if not about.get("min", 0) <= len(value) <= about.get("max", 2**31):
            yield f"{path} has {len(value)} characters"


def policy(path):
    import parliament

    with open(path) as file:
        found = parliament.analyze_policy_string(file.read()).findings
    print(json.dumps(sorted([one.issue, str(one.detail)] for one in found)))


if __name__ == "__main__":
    if sys.argv[1] == "drive":
        drive(sys.argv[2])
    elif sys.argv[1] == "policy":
        policy(sys.argv[2])
    else:
        check(json.load(sys.stdin))
