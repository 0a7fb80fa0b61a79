// A Collector of OpenTelemetry with the parts that the tests use: the OTLP receiver, the debug exporter, and an authenticator
// that compares the header "authorization" of each request with a file, which may be replaced while the Collector runs.
package main

import (
	"context"
	"errors"
	"os"
	"strings"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/debugexporter"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/extension/extensionauth"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/service/telemetry/otelconftelemetry"
)

var fileAuth = component.MustNewType("fileauth")

type fileAuthConfig struct {
	File string `mapstructure:"file"`
}

type fileAuthenticator struct {
	component.StartFunc
	component.ShutdownFunc
	file string
}

var _ extensionauth.Server = (*fileAuthenticator)(nil)

func (auth *fileAuthenticator) Authenticate(ctx context.Context, headers map[string][]string) (context.Context, error) {
	wanted, err := os.ReadFile(auth.file)
	if err != nil {
		return ctx, err
	}
	for name, values := range headers {
		if strings.EqualFold(name, "authorization") && len(values) == 1 && values[0] == strings.TrimSpace(string(wanted)) {
			return ctx, nil
		}
	}
	return ctx, errors.New("the header authorization is absent or wrong")
}

func components() (otelcol.Factories, error) {
	auth := extension.NewFactory(
		fileAuth,
		func() component.Config { return &fileAuthConfig{} },
		func(_ context.Context, _ extension.Settings, config component.Config) (extension.Extension, error) {
			return &fileAuthenticator{file: config.(*fileAuthConfig).File}, nil
		},
		component.StabilityLevelDevelopment,
	)
	receive, export := otlpreceiver.NewFactory(), debugexporter.NewFactory()
	return otelcol.Factories{
		Extensions: map[component.Type]extension.Factory{auth.Type(): auth},
		Receivers:  map[component.Type]receiver.Factory{receive.Type(): receive},
		Exporters:  map[component.Type]exporter.Factory{export.Type(): export},
		Telemetry:  otelconftelemetry.NewFactory(),
	}, nil
}

func main() {
	settings := otelcol.CollectorSettings{
		BuildInfo: component.BuildInfo{Command: "otelcol", Description: "Collector of gangwatch's tests", Version: "0.145.0"},
		Factories: components,
		ConfigProviderSettings: otelcol.ConfigProviderSettings{
			ResolverSettings: confmap.ResolverSettings{
				DefaultScheme:     "file",
				ProviderFactories: []confmap.ProviderFactory{fileprovider.NewFactory()},
			},
		},
	}
	if err := otelcol.NewCommand(settings).Execute(); err != nil {
		os.Exit(1)
	}
}
