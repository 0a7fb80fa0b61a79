//go:build never

// Package containerd names the programs that ../programs.sh builds, so that `go mod tidy` keeps their modules.
package containerd

import (
	_ "github.com/containerd/containerd/v2/cmd/containerd"
	_ "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"
)
