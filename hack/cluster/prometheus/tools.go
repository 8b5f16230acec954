//go:build tools

// Package tools names the commands that hack/cluster builds, so that go.mod keeps what they need.
package tools

import (
	_ "github.com/prometheus/prometheus/cmd/prometheus"
	_ "github.com/prometheus/prometheus/cmd/promtool"
)
