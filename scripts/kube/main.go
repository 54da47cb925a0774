// Command kube is Kubernetes for the tests: its programs in one binary, so that what they share is compiled and
// linked once. The name it is called by (a link kube-apiserver -> kube) or the first argument says which one runs.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	_ "k8s.io/client-go/plugin/pkg/client/auth"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
)

var servers = map[string]func() *cobra.Command{
	"kube-apiserver": apiserver.NewAPIServerCommand,
}

func main() {
	name := filepath.Base(os.Args[0])
	if name == "kube" && len(os.Args) > 1 {
		os.Args = os.Args[1:]
		name = os.Args[0]
	}
	if name == "kubectl" {
		if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
			util.CheckErr(err)
		}
		return
	}
	server, ok := servers[name]
	if !ok {
		fmt.Fprintln(os.Stderr, "usage: kube kube-apiserver|kubectl FLAGS")
		os.Exit(2)
	}
	os.Exit(cli.Run(server()))
}
