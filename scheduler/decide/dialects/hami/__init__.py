"""HAMi's shares on one node. Reads no annotation and no name of HAMi's."""
