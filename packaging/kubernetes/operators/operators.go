//go:build never

package operators

import _ "github.com/kubeflow/training-operator/cmd/training-operator.v1"
