// Decodes the policies in a file, one JSON object per line, with encoding/json and prints nanoseconds of CPU time per
// policy: the median of several rounds.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"sort"
	"syscall"
	"time"
)

type policy struct {
	Kind       string            `json:"kind"`
	APIVersion string            `json:"apiVersion"`
	Metadata   metadata          `json:"metadata"`
	Spec       spec              `json:"spec"`
	Status     map[string]string `json:"status"`
}

type metadata struct {
	Name              string            `json:"name"`
	Namespace         string            `json:"namespace"`
	UID               string            `json:"uid"`
	CreationTimestamp time.Time         `json:"creationTimestamp"`
	Labels            map[string]string `json:"labels"`
	Annotations       map[string]string `json:"annotations"`
}

type spec struct {
	Tier                   string   `json:"tier"`
	Order                  *float64 `json:"order"`
	Selector               string   `json:"selector"`
	ServiceAccountSelector string   `json:"serviceAccountSelector"`
	Types                  []string `json:"types"`
	Ingress                []rule   `json:"ingress"`
	Egress                 []rule   `json:"egress"`
}

type rule struct {
	Action      string `json:"action"`
	IPVersion   *int   `json:"ipVersion"`
	Protocol    any    `json:"protocol"`
	NotProtocol any    `json:"notProtocol"`
	Source      entity `json:"source"`
	Destination entity `json:"destination"`
}

type entity struct {
	Nets              []string `json:"nets"`
	NotNets           []string `json:"notNets"`
	Selector          string   `json:"selector"`
	NotSelector       string   `json:"notSelector"`
	NamespaceSelector string   `json:"namespaceSelector"`
	Ports             []any    `json:"ports"`
	NotPorts          []any    `json:"notPorts"`
}

// now returns the CPU time of all threads of the process, including the garbage collector's.
func now() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func main() {
	runtime.GOMAXPROCS(1)
	content, err := os.ReadFile(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	lines := bytes.Split(bytes.TrimSpace(content), []byte("\n"))
	var times []float64
	for range 7 {
		start, decoded := now(), 0
		for decoded == 0 || now()-start < 60*time.Millisecond {
			policies := make([]policy, len(lines))
			for i, line := range lines {
				if err := json.Unmarshal(line, &policies[i]); err != nil {
					fmt.Fprintln(os.Stderr, err)
					os.Exit(1)
				}
			}
			decoded += len(policies)
		}
		times = append(times, float64((now()-start).Nanoseconds())/float64(decoded))
	}
	sort.Float64s(times)
	fmt.Printf("%.1f\n", times[len(times)/2])
}
