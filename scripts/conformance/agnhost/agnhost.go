//go:build tools

package main

// Keeps the module of the program that scripts/conformance/build builds by its path.
import _ "k8s.io/kubernetes/test/images/agnhost"
