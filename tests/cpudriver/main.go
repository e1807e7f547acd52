// Reads the CPUs of ResourceClaims with dra-driver-cpu's own types, as its groupBy machine does.
//
// Reads one ResourceClaim a line from standard input and writes for each, as JSON, the CPU set of
// every request that has a configuration of the driver's, or why the driver would take none:
//
//	{"cpus": {"c": "2-5"}, "error": ""}
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"

	"github.com/kubernetes-sigs/dra-driver-cpu/api"
	resource "k8s.io/api/resource/v1"
)

const driver = "dra.cpu"

type answer struct {
	CPUs  map[string]string `json:"cpus"`
	Error string            `json:"error"`
}

func read(line []byte) (map[string]string, error) {
	var claim resource.ResourceClaim
	if err := json.Unmarshal(line, &claim); err != nil {
		return nil, err
	}
	found := map[string]string{}
	if claim.Status.Allocation == nil {
		return found, nil
	}
	for _, config := range claim.Status.Allocation.Devices.Config {
		if config.Opaque == nil || config.Opaque.Driver != driver {
			continue
		}
		if config.Source != resource.AllocationConfigSourceClaim || len(config.Requests) != 1 {
			return nil, fmt.Errorf("not of one request of the claim: %v", config)
		}
		set, err := api.ParseOpaqueConfig(config.Opaque.Parameters.Raw)
		if err != nil {
			return nil, err
		}
		if _, twice := found[config.Requests[0]]; twice {
			return nil, fmt.Errorf("twice: %s", config.Requests[0])
		}
		found[config.Requests[0]] = set.String()
	}
	return found, nil
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		found, err := read(lines.Bytes())
		said := answer{CPUs: found}
		if err != nil {
			said.Error = err.Error()
		}
		if err := json.NewEncoder(os.Stdout).Encode(said); err != nil {
			panic(err)
		}
	}
}
