//! Units and jobs: what contradicts itself, the hosts or the intent; and what others write and is right.

use ringway_doctor::lint::{Input, lint};

use super::{HOST, clean, expect};

const JOB: &str = include_str!("../golden/rich.k8s.yaml");
const UNIT: &str = include_str!("../golden/rich.host-unit.apply.txt");
const INTENT: &str = include_str!("../intents/rich.yaml");
const NICS: &str = include_str!("../golden/rich.host.apply.txt");

/// A text with something else in it, which has to be there.
fn with(text: &str, old: &str, new: &str) -> String {
    assert!(text.contains(old), "{old}");
    text.replacen(old, new, 1)
}

#[test]
fn a_unit_that_is_not_bound_to_a_nic_in_all_ways() {
    clean(&[("u.service", UNIT), ("host.sh", NICS), ("i.yaml", INTENT)]);
    for line in [
        "BindsTo=sys-subsystem-net-devices-ens1f0np0.device\n",
        "After=sys-subsystem-net-devices-rdma\\x2d1.device\n",
        "WantedBy=sys-subsystem-net-devices-ens1f0np0.device\n",
    ] {
        let (key, _) = line.split_once('=').unwrap();
        let unit = with(UNIT, line, "");
        let words = format!("not in {key}=");
        expect(&[("u.service", &unit)], "unit.binding", &words, &[key]);
    }
    let dry = with(UNIT, " --apply", "");
    let script = "ExecStart=/usr/local/sbin/ringway-lossless";
    expect(
        &[("u.service", &dry)],
        "unit.dry_run",
        "without --apply",
        &[script],
    );
    // All of it for another NIC than the hosts'.
    let other = UNIT.replace("ens1f0np0", "ens9f0np0");
    let sides = ["ens9f0np0", "ip link set dev ens1f0np0"];
    let files = [("u.service", other.as_str()), ("host.sh", NICS)];
    expect(
        &files,
        "needs.interface",
        "which no host here sets up",
        &sides[..1],
    );
    expect(
        &[("u.service", &other), ("i.yaml", INTENT)],
        "intent",
        "names interface ens9f0np0",
        &["interface: ens1f0np0"],
    );
}

#[test]
fn manifests_that_do_not_fit_each_other() {
    clean(&[("j.yaml", JOB), ("host.sh", NICS), ("i.yaml", INTENT)]);
    // By themselves they are compared with each other.
    let alone = lint(&[Input::new("j.yaml", JOB)]);
    assert_eq!((alone.checks, alone.unjudged.len()), (1, 0));
    for (old, new, check, words) in [
        (
            "add: [IPC_LOCK]",
            "add: [NET_RAW]",
            "job.memlock",
            "may not lock memory",
        ),
        ("10.56.1.0/24", "10.56.0.0/24", "job.subnet", "10.56.0.0/24"),
        ("--nnodes=4", "--nnodes=5", "job.hosts", "completions is 4"),
        ("--nnodes=4", "--nnodes=1:3", "job.hosts", "--nnodes is 1:3"),
        ("--nnodes=4", "--nnodes=5:8", "job.hosts", "--nnodes is 5:8"),
        (
            "parallelism: 4",
            "parallelism: 2",
            "job.hosts",
            "parallelism is 2",
        ),
        (
            "train-ens1f0np0,train-rdma-1",
            "train-ens1f0np0",
            "job.reference",
            "the pods do not attach to it",
        ),
        (
            "rdma/roce_rdma_1: \"1\"",
            "cpu2: 1",
            "job.reference",
            "do not ask for it",
        ),
        (
            "rdma/roce_rdma_1: \"1\"",
            "rdma/roce_rdma_1: 2",
            "job.devices",
            "ask for 2",
        ),
        (
            "value: net1,net2",
            "value: net1,net3",
            "job.interfaces",
            "net1,net2",
        ),
        (
            "\"resourceName\": \"roce_rdma_1\"",
            "\"resourceName\": \"roce_rdma_2\"",
            "job.reference",
            "list does not have it",
        ),
    ] {
        let job = with(JOB, old, new);
        expect(&[("j.yaml", &job)], check, words, &[]);
    }
    let long = with(JOB, "\"mtu\": 4200", "\"mtu\": 9000");
    expect(
        &[("j.yaml", &long), ("host.sh", NICS)],
        "needs.mtu",
        "wants an MTU of 9000",
        &["mtu 4200"],
    );
    expect(
        &[("j.yaml", "kind: Pod\napiVersion: [\n")],
        "file.syntax",
        "",
        &[],
    );
}

#[test]
fn what_others_write_is_no_fault() {
    // The plugin that shares a device among pods has no resource for each network; GPUs are no network's.
    let shared = "\
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {name: roce}
spec:
  config: '{\"type\": \"macvlan\", \"master\": \"eth1\", \"mtu\": 1500}'
---
apiVersion: v1
kind: Pod
metadata:
  name: a
  annotations: {k8s.v1.cni.cncf.io/networks: roce}
spec:
  containers:
    - name: a
      securityContext: {capabilities: {add: [IPC_LOCK]}}
      resources: {limits: {rdma/hca_shared_devices_a: 1, nvidia.com/gpu: 8}}
";
    clean(&[("shared.yaml", shared), ("host.sh", HOST)]);
    // Many pods one after the other, without RDMA; and another program's configuration.
    let batch = "\
apiVersion: batch/v1
kind: Job
metadata: {name: b}
spec: {completions: 100, parallelism: 4, template: {spec: {containers: [{name: b, image: b}]}}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: c}
data: {config.json: '{\"a\": 1}'}
";
    clean(&[("batch.yaml", batch), ("host.sh", HOST)]);
    // Names with a namespace and an interface, and as a list in JSON.
    for networks in [
        "default/train-ens1f0np0@net1,default/train-rdma-1@net2",
        "'[{\"name\": \"train-ens1f0np0\"}, {\"name\": \"train-rdma-1\", \"namespace\": \"default\"}]'",
    ] {
        let job = with(
            JOB,
            "networks: train-ens1f0np0,train-rdma-1",
            &format!("networks: {networks}"),
        );
        clean(&[("j.yaml", &job), ("i.yaml", INTENT)]);
    }
    // A device without RDMA is not the intent's.
    let more = with(
        JOB,
        "\"resourceList\": [",
        "\"resourceList\": [\n        {\"resourceName\": \"dpdk\", \"selectors\": [{\"pfNames\": [\"eno1\"]}]},",
    );
    let all = super::findings(&[("j.yaml", &more), ("i.yaml", INTENT)]);
    assert!(all.iter().all(|it| it.check != "intent"), "{all:#?}");
}

#[test]
fn jobs_may_go_on_with_fewer_hosts() {
    // torchrun, Elastic launch: `--nnodes=MIN:MAX`; what a variable says is not known.
    for nodes in ["1:4", "4:4", "2:8", "$(NNODES)", "$(LEAST):$(MOST)"] {
        let job = with(JOB, "--nnodes=4", &format!("--nnodes={nodes}"));
        clean(&[("j.yaml", &job), ("i.yaml", INTENT)]);
    }
}

/// All documents as one, as `kubectl get -o yaml` prints them.
fn list(documents: &str, kind: &str) -> String {
    let mut list = String::from("apiVersion: v1\nitems:\n");
    for document in documents.split("\n---\n") {
        let mut mark = "- ";
        for line in document.lines().filter(|line| !line.starts_with('#')) {
            list += &format!("{mark}{line}\n");
            mark = "  ";
        }
    }
    list + &format!("kind: {kind}\nmetadata:\n  resourceVersion: \"\"\n")
}

#[test]
fn a_list_is_as_good_as_its_documents() {
    for kind in ["List", "ServiceList"] {
        let whole = list(JOB, kind);
        clean(&[("l.yaml", &whole), ("host.sh", NICS), ("i.yaml", INTENT)]);
        for (old, new, check, words, lines) in [
            (
                "parallelism: 4",
                "parallelism: 2",
                "job.hosts",
                "parallelism is 2",
                ["completions: 4", "parallelism: 2"],
            ),
            (
                "\"resourceName\": \"roce_rdma_1\"",
                "\"resourceName\": \"roce_rdma_2\"",
                "job.reference",
                "list does not have it",
                [
                    "resourceName: rdma/roce_rdma_1",
                    "\"resourceName\": \"roce_ens1f0np0\"",
                ],
            ),
            (
                "add: [IPC_LOCK]",
                "add: [NET_RAW]",
                "job.memlock",
                "may not lock memory",
                ["rdma/roce_ens1f0np0: \"1\"", ""],
            ),
        ] {
            let wrong = with(&whole, old, new);
            expect(&[("l.yaml", &wrong)], check, words, &lines);
        }
    }
}

#[test]
fn a_file_of_documents_that_are_none_is_not_told_of_each() {
    let text = format!("apiVersion: v1\n{}", "---\na: [\n".repeat(1000));
    let found = expect(&[("k8s:many.yaml", &text)], "file.syntax", "", &["a: ["]);
    assert_eq!(found.subject, "manifest and 19 more");
}

#[test]
fn two_jobs_of_a_file_may_have_other_numbers_of_hosts() {
    let second = JOB
        .replace("completions: 4", "completions: 2")
        .replace("parallelism: 4", "parallelism: 2")
        .replace("--nnodes=4", "--nnodes=2");
    let job = second.rfind("\nkind: Job").unwrap();
    let begin = second[..job].rfind("---\n").unwrap();
    let both = format!("{JOB}\n{}", &second[begin..]);
    clean(&[("j.yaml", &both), ("i.yaml", INTENT)]);
}

#[test]
fn devices_and_interfaces_of_applications_are_the_intents() {
    for right in [
        "NCCL_IB_HCA=mlx5_0:1,mlx5_1:2",
        "NCCL_IB_HCA=mlx5",
        "NCCL_IB_HCA==mlx5_0,mlx5_1",
        "NCCL_IB_HCA=^mlx5_7",
        "UCX_NET_DEVICES=mlx5_0:1,mlx5_1:2",
        "UCX_NET_DEVICES=eth0",
        "RINGWAY_INTERFACES=ens1f0np0,rdma-1",
        "RINGWAY_INTERFACES=ens*,rdma*",
        "RINGWAY_INTERFACES=10.0.0.0/8",
        "RINGWAY_INTERFACES=ens*,rdma*,10.0.0.0/8,^docker0",
        "RINGWAY_INTERFACES=^docker0",
        // The subnet, or the shell, may have the other one.
        "RINGWAY_INTERFACES=ens1f0np0,10.0.0.0/8",
        "RINGWAY_INTERFACES=ens1f0np0,192.168.7.4",
        "RINGWAY_INTERFACES=ens1f0np0,$NICS",
        "RINGWAY_INTERFACES=ens1f0np0,all",
        "NCCL_IB_HCA=mlx5_0:1,$MORE",
        "RINGWAY_INTERFACES=$NICS",
        "RINGWAY_INTERFACES=all",
        "NCCL_IB_FIFO_TC=138",
    ] {
        let job = format!("export NCCL_IB_TC=106\nexport NCCL_GIN_IB_TC=106\nexport {right}\n");
        clean(&[("job.env", &job), ("i.yaml", INTENT)]);
    }
    for (wrong, words, side) in [
        (
            "NCCL_IB_HCA=mlx5_0:1,mlx5_2:1",
            "takes device mlx5_2:1",
            "device: mlx5_0",
        ),
        (
            "NCCL_IB_HCA=mlx5_0:1",
            "does not take device mlx5_1:2",
            "rdma-1",
        ),
        ("NCCL_IB_HCA==mlx5", "takes device mlx5", "device: mlx5_0"),
        (
            "UCX_NET_DEVICES=mlx5_0:1,mlx5_1:1",
            "takes device mlx5_1:1",
            "device: mlx5_0",
        ),
        (
            "RINGWAY_INTERFACES=ens1f0np0,rdma-2",
            "names interface rdma-2",
            "device: mlx5_0",
        ),
        (
            "RINGWAY_INTERFACES=rdma-2,10.0.0.0/8",
            "names interface rdma-2",
            "device: mlx5_0",
        ),
        (
            "RINGWAY_INTERFACES=ens1f0np0,^docker0",
            "does not name interface rdma-1",
            "rdma-1",
        ),
        (
            "NCCL_IB_TC=138",
            "DSCP 34, and the intent's class data has 26, 28",
            "dscp: [26, 28]",
        ),
        ("NCCL_IB_FIFO_TC=194", "DSCP 48", "dscp: [26, 28]"),
    ] {
        let job = format!("export {wrong}\n");
        expect(
            &[("job.env", &job), ("i.yaml", INTENT)],
            "intent",
            words,
            &[wrong, side],
        );
    }
    let met = "export NCCL_IB_TC=107\n";
    expect(
        &[("job.env", met)],
        "application.value",
        "has met congestion",
        &["107"],
    );
}
