// Command kube is Kubernetes for the lab and the tests, at the version that go.mod pins: control plane, node agent and
// client in one program, which is told by the name it is called as which of them it is; and the etcd that this version of
// Kubernetes is made for. Linked once, the packages that all of them share are built and stored once.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var programs = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllers.NewControllerManagerCommand,
	"kube-proxy":              proxy.NewProxyCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kubectl":                 kubectl.NewDefaultKubectlCommand,
	"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
}

// How often the API server compares what it has in its caches with its store: five minutes, unless this says otherwise.
const consistencyCheckPeriod = "KUBE_CONSISTENCY_CHECK_PERIOD"

func main() {
	name := filepath.Base(os.Args[0])
	if name == "etcd" {
		etcdmain.Main(os.Args)
		return
	}
	program, known := programs[name]
	if !known {
		names := []string{"etcd"}
		for name := range programs {
			names = append(names, name)
		}
		sort.Strings(names)
		fmt.Fprintf(os.Stderr, "kube: call me by the name of one of my programs: %s\n", strings.Join(names, ", "))
		os.Exit(2)
	}
	if text := os.Getenv(consistencyCheckPeriod); text != "" {
		period, err := time.ParseDuration(text)
		if err != nil {
			fmt.Fprintf(os.Stderr, "kube: %s: %v\n", consistencyCheckPeriod, err)
			os.Exit(2)
		}
		cacher.ConsistencyCheckPeriod = period
	}
	if name == "kubectl" {
		// Its errors have a form of their own.
		if err := cli.RunNoErrOutput(program()); err != nil {
			util.CheckErr(err)
		}
		return
	}
	os.Exit(cli.Run(program()))
}
