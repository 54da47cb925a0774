// Command e2e contains the tests of SIG Network from the end-to-end suite of Kubernetes
// (k8s.io/kubernetes/test/e2e/network, including netpol, the NetworkPolicy tests). The
// flags are those of e2e.test:
//
//	e2e --kubeconfig=F --provider=skeleton --ginkgo.focus=Netpol --ginkgo.skip='Feature:SCTP'
package main

import (
	"context"
	"flag"
	"os"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"k8s.io/component-base/logs"
	"k8s.io/klog/v2"
	commontest "k8s.io/kubernetes/test/e2e/common"
	_ "k8s.io/kubernetes/test/e2e/feature"
	"k8s.io/kubernetes/test/e2e/framework"
	"k8s.io/kubernetes/test/e2e/framework/config"
	_ "k8s.io/kubernetes/test/e2e/framework/debug/init"
	_ "k8s.io/kubernetes/test/e2e/framework/metrics/init"
	_ "k8s.io/kubernetes/test/e2e/framework/node/init"
	"k8s.io/kubernetes/test/e2e/framework/testfiles"
	_ "k8s.io/kubernetes/test/e2e/network"
	e2etestingmanifests "k8s.io/kubernetes/test/e2e/testing-manifests"
	_ "k8s.io/kubernetes/test/utils/format"
)

var _ = ginkgo.SynchronizedBeforeSuite(func(ctx context.Context) []byte {
	commontest.CurrentSuite = commontest.E2E
	return nil
}, func(ctx context.Context, _ []byte) {
	// every parallel process
	framework.TestContext.IPFamily = "ipv4"
})

type result struct{ failed bool }

func (r *result) Fail() { r.failed = true }

func main() {
	config.CopyFlags(config.Flags, flag.CommandLine)
	framework.RegisterCommonFlags(flag.CommandLine)
	framework.RegisterClusterFlags(flag.CommandLine)
	flag.Parse()
	testfiles.AddFileSource(e2etestingmanifests.GetE2ETestingManifestsFS())
	framework.AfterReadingAllFlags(&framework.TestContext)

	logs.InitLogs()
	defer logs.FlushLogs()
	klog.EnableContextualLogging(true)
	gomega.RegisterFailHandler(framework.Fail)
	suite, reporter := framework.CreateGinkgoConfig()
	r := &result{}
	if !ginkgo.RunSpecs(r, "Kubernetes e2e suite: network", suite, reporter) || r.failed {
		os.Exit(1)
	}
}
