// Command e2e is the part of Kubernetes' end-to-end suite that SIG Network owns, with the flags of upstream's e2e.test.
package main

import (
	"context"
	"flag"
	"os"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"k8s.io/component-base/logs"
	"k8s.io/kubernetes/test/e2e/common"
	"k8s.io/kubernetes/test/e2e/framework"
	"k8s.io/kubernetes/test/e2e/framework/config"
	"k8s.io/kubernetes/test/e2e/framework/testfiles"
	manifests "k8s.io/kubernetes/test/e2e/testing-manifests"

	// The specs, and the features that they may name.
	_ "k8s.io/kubernetes/test/e2e/feature"
	_ "k8s.io/kubernetes/test/e2e/network"

	// Hooks of the framework: state of the cluster after a failure, and the number of ready nodes.
	_ "k8s.io/kubernetes/test/e2e/framework/debug/init"
	_ "k8s.io/kubernetes/test/e2e/framework/metrics/init"
	_ "k8s.io/kubernetes/test/e2e/framework/node/init"
	_ "k8s.io/kubernetes/test/utils/format"
)

// Runs in each process of the suite before its specs. Dual-stack specs select their own families.
var _ = ginkgo.SynchronizedBeforeSuite(func(context.Context) []byte {
	common.CurrentSuite = common.E2E
	return nil
}, func(context.Context, []byte) {
	framework.TestContext.IPFamily = "ipv4"
})

// Takes the place of testing.T, which a program has not.
type outcome struct{ failed bool }

func (o *outcome) Fail() { o.failed = true }

func main() {
	config.CopyFlags(config.Flags, flag.CommandLine)
	framework.RegisterCommonFlags(flag.CommandLine)
	framework.RegisterClusterFlags(flag.CommandLine)
	flag.Parse()
	testfiles.AddFileSource(manifests.GetE2ETestingManifestsFS())
	framework.AfterReadingAllFlags(&framework.TestContext)
	logs.InitLogs()

	gomega.RegisterFailHandler(framework.Fail)
	settings, reporter := framework.CreateGinkgoConfig()
	result := &outcome{}
	passed := ginkgo.RunSpecs(result, "SIG Network", settings, reporter)
	logs.FlushLogs()
	if !passed || result.failed {
		os.Exit(1)
	}
}
