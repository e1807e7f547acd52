// Answers whether kubelet admits Pods, by its own CPU Manager and Topology Manager.
//
// Reads one question a line from standard input and writes `true` or `false` for each:
//
//	{"cpus": [[id, core, socket, numa], ...], "reserved": [0], "taken": [4, 5],
//	 "policy": "restricted", "scope": "pod", "options": {"full-pcpus-only": "true"},
//	 "containers": [["init", 2], ["app", 4]]}
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"

	cadvisor "github.com/google/cadvisor/info/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager/state"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager/topology"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
	"k8s.io/utils/cpuset"
)

type question struct {
	CPUs       [][4]int          `json:"cpus"`
	Reserved   []int             `json:"reserved"`
	Taken      []int             `json:"taken"`
	Policy     string            `json:"policy"`
	Scope      string            `json:"scope"`
	Options    map[string]string `json:"options"`
	Containers [][2]any          `json:"containers"`
}

// provider lets the Topology Manager ask the static policy, as kubelet's CPU Manager does.
type provider struct {
	policy cpumanager.Policy
	state  state.State
}

func (p provider) GetTopologyHints(pod *v1.Pod, c *v1.Container) map[string][]topologymanager.TopologyHint {
	return p.policy.GetTopologyHints(klog.Background(), p.state, pod, c)
}

func (p provider) GetPodTopologyHints(pod *v1.Pod) map[string][]topologymanager.TopologyHint {
	return p.policy.GetPodTopologyHints(klog.Background(), p.state, pod)
}

func (p provider) Allocate(pod *v1.Pod, c *v1.Container) error {
	return p.policy.Allocate(klog.Background(), p.state, pod, c)
}

func (p provider) AllocatePod(pod *v1.Pod) error {
	return p.policy.AllocatePod(klog.Background(), p.state, pod)
}

func main() {
	klog.SetLogger(klog.Logger{})
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for lines.Scan() {
		var asked question
		must(json.Unmarshal(lines.Bytes(), &asked))
		fmt.Fprintln(out, admits(asked))
	}
	must(lines.Err())
}

func admits(asked question) bool {
	machine, numas := machineOf(asked.CPUs)
	manager, err := topologymanager.NewManager(numas, asked.Policy, asked.Scope, nil)
	must(err)
	reserved := cpuset.New(asked.Reserved...)
	policy, err := cpumanager.NewStaticPolicy(
		klog.Background(), machine, reserved.Size(), reserved, manager, asked.Options)
	must(err)
	taken := cpuset.New(asked.Taken...)
	held := state.NewMemoryState(klog.Background())
	held.SetDefaultCPUSet(machine.CPUDetails.CPUs().Difference(taken))
	if !taken.IsEmpty() {
		held.SetCPUSet("others", "others", taken)
	}
	manager.AddHintProvider(klog.Background(), provider{policy, held})
	return manager.Admit(&lifecycle.PodAdmitAttributes{Pod: podOf(asked.Containers)}).Admit
}

// machineOf returns the CPUs as kubelet discovers them: a core is named after its lowest CPU.
func machineOf(cpus [][4]int) (*topology.CPUTopology, []cadvisor.Node) {
	details := topology.CPUDetails{}
	cores := map[[2]int]int{}
	for _, cpu := range cpus {
		key := [2]int{cpu[2], cpu[1]}
		if lowest, known := cores[key]; !known || cpu[0] < lowest {
			cores[key] = cpu[0]
		}
	}
	for _, cpu := range cpus {
		core := cores[[2]int{cpu[2], cpu[1]}]
		details[cpu[0]] = topology.CPUInfo{CoreID: core, SocketID: cpu[2], NUMANodeID: cpu[3]}
	}
	numas := []cadvisor.Node{}
	for _, id := range details.NUMANodes().List() {
		numas = append(numas, cadvisor.Node{Id: id})
	}
	return &topology.CPUTopology{
		NumCPUs:        len(details),
		NumCores:       len(cores),
		NumSockets:     details.Sockets().Size(),
		NumNUMANodes:   len(numas),
		NumUncoreCache: 1,
		CPUDetails:     details,
	}, numas
}

// podOf returns a Guaranteed Pod with these containers, init containers and sidecars first.
func podOf(containers [][2]any) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ml", UID: "p"}}
	for number, each := range containers {
		amounts := v1.ResourceList{
			v1.ResourceCPU:    *resource.NewQuantity(int64(each[1].(float64)), resource.DecimalSI),
			v1.ResourceMemory: resource.MustParse("1Gi"),
		}
		container := v1.Container{
			Name:      fmt.Sprintf("c%d", number),
			Resources: v1.ResourceRequirements{Requests: amounts, Limits: amounts},
		}
		always := v1.ContainerRestartPolicyAlways
		switch each[0] {
		case "sidecar":
			container.RestartPolicy = &always
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, container)
		case "init":
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, container)
		default:
			pod.Spec.Containers = append(pod.Spec.Containers, container)
		}
	}
	return pod
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
