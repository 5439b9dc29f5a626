"""Problems of the sample corpus."""
