//go:build never

// Package kwok names the program that build.sh builds, so that `go mod tidy` keeps its modules.
package kwok

import _ "sigs.k8s.io/kwok/cmd/kwok"
