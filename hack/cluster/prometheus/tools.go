//go:build tools

// Package tools names the command that hack/cluster builds, so that go.mod keeps what it needs.
package tools

import _ "github.com/prometheus/prometheus/cmd/prometheus"
