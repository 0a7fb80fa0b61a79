//go:build never

// Package operators names the programs that build.sh builds, so that `go mod tidy` keeps their modules.
package operators

import _ "github.com/kubeflow/training-operator/cmd/training-operator.v1"
